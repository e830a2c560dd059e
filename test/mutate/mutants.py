"""
The mistakes that test/mutate makes: which mutants a C file has, and their text.

Model: comments, texts, preprocessor lines and code without behaviour (assertions,
messages, test points) are blanked: a space replaces each character, so that offsets
remain those of the file.  Operators search the remaining code for patterns and
return replacements (start, end, text).  A mutant never changes the number of lines.

Only bodies of functions have mutants.  They must have the layout of PostgreSQL: the
braces of a function are in the first column, and its name is before the last "("
in the first column above the braces.
"""

import re
from bisect import bisect_right
from collections import Counter, namedtuple

Mutant = namedtuple('Mutant', 'file function line operator number start end text')

# A weaker mode for each mode that the code uses. A stronger mode would only wait longer.
MODES = {
    'RowExclusiveLock': 'AccessShareLock', 'ShareUpdateExclusiveLock': 'RowExclusiveLock',
    'ShareLock': 'RowExclusiveLock', 'ShareRowExclusiveLock': 'RowExclusiveLock',
    'ExclusiveLock': 'RowShareLock', 'AccessExclusiveLock': 'RowExclusiveLock',
    'RowShareLock': 'AccessShareLock', 'LW_EXCLUSIVE': 'LW_SHARED',
    'AL_CLAIM_TAKE': 'AL_CLAIM_SHARE', 'AL_CLAIM_SHARE': 'AL_CLAIM_PIN', 'AL_CLAIM_EXTEND': 'AL_CLAIM_SHARE',
    'AL_CLAIM_SHARE_EXTEND': 'AL_CLAIM_SHARE', 'AL_CLAIM_PIN': 'AL_CLAIM_SHARE',
    'AL_LOOK_ALL': 'AL_LOOK_OWN', 'AL_LOOK_SOME': 'AL_LOOK_OWN', 'AL_LOOK_OWN': 'AL_LOOK_ALL',
}
COMPARISONS = {'<': '<=', '<=': '<', '>': '>=', '>=': '>', '==': '!=', '!=': '=='}
# Calls without effect on answers: messages, assertions, the log, test points
SILENT = (r'(?:ereport|elog|Assert\w*|StaticAssert\w*|AL_TEST_POINT|AL_INJECTION_POINT|al_test_\w+|'
          r'pgstat_report_\w+)')
# Calls that only free memory earlier than the end of the process or context, or only react earlier
# to a cancel
FREES = r'CHECK_FOR_INTERRUPTS|pfree|list_free|MemoryContextDelete|MemoryContextReset|explicit_bzero|hash_destroy|bms_free'
CONTROLS = r'(?:if|while|for|switch|foreach\w*|FOR_\w+|return|sizeof)$'

NOISE = re.compile(r'/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|^[ \t]*#(?:\\\n|[^\n])*', re.S | re.M)
FUNCTION = re.compile(r'^(?:AL_FUNCTION\()?(\w+)(?:\(|(?=\)\n))(?:[^(){};]|\([^()]*\))*\)\s*\n\{\n(.*?)^\}', re.S | re.M)
TOKEN = re.compile(r'\s+|\w+|->|<<=?|>>=?|[<>=!]=|&&|\|\||\+\+|--|[-+*/%&|^]=|.', re.S)
ASSIGNMENT = re.compile(r'(?:\w+(?:(?:->|\.)\w+|\[[^][\n]*\])*\s*(?:[-+|&]?=(?!=)|\+\+|--))[^{};]*;')


def blank(text):
    return re.sub(r'[^\n]', ' ', text)


def closing(code, at):
    """Index of the bracket that closes the bracket at an index."""
    depth = 0
    for i in range(at, len(code)):
        depth += (code[i] in '([{') - (code[i] in ')]}')
        if depth == 0:
            return i
    return len(code)


def visible(text):
    """The text, with everything blanked that the operators must not see."""
    # the code of test builds, up to its #else
    text = re.sub(r'^#ifdef AL_TEST_HOOKS\n.*?^#(?:else|endif)', lambda m: blank(m[0]), text, flags=re.S | re.M)
    code = NOISE.sub(lambda m: blank(m[0]), text)
    for m in re.finditer(r'\b%s\s*\(' % SILENT, code):
        if code[m.start()] == ' ':
            continue
        end = closing(code, m.end() - 1) + 1
        inside = code[m.start():end]
        # keep the name of a raising call, for the operator "raise"
        kept = inside.index('(') if re.match(r'(?:ereport|elog)\s*\(\s*ERROR\b', inside) else 0
        code = code[:m.start() + kept] + blank(inside[kept:]) + code[end:]
    return code


def tokens(code, start, end):
    """The tokens except white space: (start, end, text, depth, depth without braces)."""
    depth = parens = 0
    found = []
    for m in TOKEN.finditer(code, start, end):
        if m[0].isspace():
            continue
        depth -= m[0] in ')]}'
        parens -= m[0] in ')]'
        found.append((m.start(), m.end(), m[0], depth, parens))
        depth += m[0] in '([{'
        parens += m[0] in '(['
    return found


def operands(found, i):
    """The tokens where the left operand of a logical operator begins and the right one ends."""
    depth, ends = found[i][3], {',', ';', '?', ':', '{', '}', '=', 'return', '&&', '||'}
    left = i
    while found[left - 1][3] > depth or (found[left - 1][3] == depth and found[left - 1][2] not in ends):
        left -= 1
    right = i
    while found[right + 1][3] > depth or (found[right + 1][3] == depth and found[right + 1][2] not in ends):
        right += 1
    return left, right


def edits(code, text, start, end):
    """All mistakes in one function: (operator, start, end, text)."""
    found = tokens(code, start, end)
    for i, (at, stop, word, depth, parens) in enumerate(found):
        before = found[i - 1] if i else (0, 0, '{', 0, 0)
        after = found[i + 1] if i + 1 < len(found) else (0, 0, '', 0, 0)
        begins = parens == 0 and (before[2] in (';', '{', '}', 'else', ':') or
                                  (before[2] == ')' and controls(found, i - 1)))
        if word in ('if', 'while') and after[2] == '(':
            close = closing(code, after[0])
            condition = text[after[0] + 1:close]
            yield 'negate', after[0] + 1, close, '!(%s)' % condition
            if word == 'if':
                yield 'never', after[0] + 1, close, '(%s) && 0' % condition
                yield 'always', after[0] + 1, close, '(%s) || 1' % condition
        elif word in ('&&', '||'):
            left, right = operands(found, i)
            yield 'drop', at, found[right][1], ''
            if found[left - 1][2] not in ('&&', '||'):
                yield 'drop', found[left][0], stop, ''
        elif word in COMPARISONS:
            yield 'compare', at, stop, COMPARISONS[word]
        elif word in ('true', 'false'):
            yield 'return' if before[2] == 'return' else 'bool', at, stop, 'false' if word == 'true' else 'true'
        elif word in MODES and before[2] != 'case':
            yield 'mode', at, stop, MODES[word]
        elif word == '!':
            yield 'not', at, stop, ''
        elif word.isdigit() and before[2] not in ('[', 'case', '{'):
            yield 'plus', at, stop, str(int(word) + 1)
        elif word in ('+', '-') and re.match(r'[\w)\]]', before[2][-1]) and before[2] != 'return':
            yield 'sign', at, stop, '-' if word == '+' else '+'
        elif word == '?':
            middle, last = branches(found, i)
            yield 'swap', stop, found[last][0], text[found[middle][1]:found[last][0]] + ':' + text[stop:found[middle][0]]
        elif begins and after[2] == ';' and word in ('break', 'continue', 'return'):
            yield 'skip', at, stop, ''
        elif begins and after[2] == ';' and word in ('ereport', 'elog'):
            yield 'raise', at, after[0], ''
        elif begins and after[2] == '(' and not re.match(CONTROLS + '|PG_|' + FREES, word):
            close = closing(code, after[0])
            if re.compile(r'\s*;').match(code, close + 1):
                yield 'call', at, close + 1, ''
        elif begins and ASSIGNMENT.match(code, at):
            yield 'assign', at, code.index(';', at), ''


def branches(found, i):
    """The ":" of a "?", and the first token after the expression."""
    depth, middle, nested = found[i][3], None, 0
    for j in range(i + 1, len(found)):
        word, deep = found[j][2], found[j][3]
        if deep < depth or (deep == depth and word in (',', ';')):
            return middle, j
        if deep == depth and middle is None:
            if word == ':' and nested == 0:
                middle = j
            nested += (word == '?') - (word == ':')
    return middle, len(found) - 1


def controls(found, i):
    """Does this ")" end the head of if, while, for or a similar statement?"""
    depth = found[i][3]
    while i > 0 and not (found[i][2] == '(' and found[i][3] == depth):
        i -= 1
    return i > 0 and re.match(CONTROLS, found[i - 1][2]) is not None


def mutants(file, text):
    """All mutants of a file, in the order of its functions."""
    code, result, count = visible(text), [], Counter()
    lines = [0] + [m.end() for m in re.finditer('\n', text)]
    for m in FUNCTION.finditer(code):
        for operator, start, end, new in edits(code, text, m.start(2), m.end(2)):
            new += '\n' * (text.count('\n', start, end) - new.count('\n'))
            line = bisect_right(lines, start)
            count[line, operator] += 1
            result.append(Mutant(file, m[1], line, operator, count[line, operator], start, end, new))
    return result


def name(mutant):
    """FILE:FUNCTION:LINE:OPERATOR, with a number if it is not the first of its kind on the line."""
    return '%s:%s:%d:%s' % mutant[:4] + (':%d' % mutant.number if mutant.number > 1 else '')


def apply(mutant, text):
    return text[:mutant.start] + mutant.text + text[mutant.end:]
