"""The plots of doc/benchmarks.md, as SVG files that are identical whenever the numbers are.

Text stays text, in the reader's sans-serif font; the layout allows for a wide one. The background
is white, so that the plots are readable on a dark page. The colours are those of Okabe and Ito,
which colour-blind readers can distinguish; ours is blue, with a thick line.
"""

import io
import re

import matplotlib

matplotlib.use('svg')
matplotlib.rcdefaults()  # undo the user's settings
from matplotlib import pyplot as plt
from matplotlib import ticker

import results as r

WIDTH = 8.6
BLUE, PALE_BLUE, GREY, INK, FAINT = '#0072B2', '#7FB8D8', '#A3ABB2', '#24292F', '#666E76'
OTHERS = ('#D55E00', '#009E73', '#CC79A7', '#E69F00', '#56B4E9', '#8C6D31')
# The same colour in all plots
COLOURS = {'sql': '#D55E00', 'redis': '#009E73', 'etcd': '#CC79A7', 'laravel': '#E69F00', 'poll': '#D55E00',
           'advisory': INK, 'pg_advisory_lock': INK, 'roundtrip': FAINT, 'updates': FAINT}
# The lane that stands for atomic_lock, if there are several
PLAIN = ('lock_pair', 'lock_relaxed', 'lock_pair_relaxed')
MARKERS = ('s', '^', 'D', 'v', 'P', 'X', '<', '>')

plt.rcParams.update({
    'svg.fonttype': 'none', 'svg.hashsalt': 'atomic_lock', 'font.family': ['DejaVu Sans'],
    'font.size': 9.5, 'axes.titlesize': 10.5, 'axes.titleweight': 'bold', 'axes.titlelocation': 'left',
    'axes.titlepad': 10, 'text.color': INK, 'axes.labelcolor': INK, 'xtick.color': INK, 'ytick.color': INK,
    'axes.edgecolor': FAINT, 'axes.spines.top': False, 'axes.spines.right': False, 'axes.axisbelow': True,
    'axes.grid': True, 'grid.color': '#E4E7EA', 'grid.linewidth': 0.8, 'figure.facecolor': 'white',
    'savefig.facecolor': 'white', 'xtick.minor.visible': False, 'ytick.minor.visible': False,
})


def svg(figure):
    """The text of the file"""
    out = io.StringIO()
    figure.savefig(out, format='svg', bbox_inches='tight', pad_inches=0.12,
                   metadata={'Date': None, 'Creator': None})
    plt.close(figure)
    text = out.getvalue().replace("'DejaVu Sans'", 'sans-serif')
    return re.sub(r' +$', '', text, flags=re.M)


def thousands(axis):
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f'{value:,.0f}'))


# ---------------------------------------------------------------------------
# Bars: one for each peer, the fastest on top
# ---------------------------------------------------------------------------

def bars(panels, title, below):
    """Panels are [(heading or None, {lane: Lane}, {lane: title})]; each has its own scale"""
    heights = [len(runs) for _, runs, _ in panels]
    figure, all_axes = plt.subplots(len(panels), 1, squeeze=False, gridspec_kw={'height_ratios': heights},
                                    figsize=(WIDTH, 0.37 * sum(heights) + 0.8 * len(panels)))
    figure.subplots_adjust(hspace=2 * len(panels) / sum(heights))
    for axes, (heading, runs, titles) in zip(all_axes[:, 0], panels):
        bar_panel(axes, runs, titles)
        if heading:
            axes.annotate(heading, (0, 1), (0, 5), xycoords='axes fraction', textcoords='offset points',
                          fontweight='bold', fontsize=9.5)
    all_axes[-1, 0].set_xlabel('pairs a second')
    all_axes[0, 0].set_title(title, pad=24 if panels[0][0] is None else 42)
    all_axes[0, 0].annotate(below, (0, 1), (0, 9 if panels[0][0] is None else 26), xycoords='axes fraction',
                            textcoords='offset points', fontsize=8.5, color=FAINT)
    return svg(figure)


def bar_panel(axes, runs, titles):
    lanes = sorted(runs, key=lambda lane: -runs[lane].rate)
    ours = [lane for lane in lanes if r.kind(lane) == 'ours']
    first = next((lane for lane in ours if lane in PLAIN), ours[0] if ours else None)
    most = runs[lanes[0]].rate
    for i, lane in enumerate(lanes):
        run, kind = runs[lane], r.kind(lane)
        style = {'ours': {'color': BLUE if lane == first else PALE_BLUE},
                 'yardstick': {'facecolor': 'white', 'edgecolor': FAINT, 'linestyle': '--', 'linewidth': 1},
                 }.get(kind, {'color': GREY})
        axes.barh(i, run.rate, height=0.68, **style)
        axes.annotate(r.whole(run.rate), (run.rate, i), (5, 0), textcoords='offset points', va='center',
                      fontweight='bold' if kind == 'ours' else 'normal', color=BLUE if kind == 'ours' else INK)
        if run.p50 is not None:
            axes.annotate(f'p50 {r.ms(run.p50)}, p99 {r.ms(run.p99)} ms', (1, i), (0, 0), fontsize=8, color=FAINT,
                          xycoords=axes.get_yaxis_transform(), textcoords='offset points', va='center', ha='right')
    axes.set_yticks(range(len(lanes)))
    axes.set_yticklabels([titles[lane] for lane in lanes])
    for lane, tick in zip(lanes, axes.get_yticklabels()):
        if r.kind(lane) == 'ours':
            tick.set(fontweight='bold', color=BLUE)
    axes.set(ylim=(len(lanes) - 0.4, -0.6), xlim=(0, most * 1.5))
    axes.tick_params(axis='y', length=0)
    axes.grid(axis='y', visible=False)
    axes.xaxis.set_major_locator(ticker.MaxNLocator(6, steps=[1, 2, 5, 10]))
    axes.set_xticks([tick for tick in axes.get_xticks() if tick <= most * 1.12])
    thousands(axes.xaxis)


def throughput(results, groups, title):
    clients = results.usual_clients(groups)
    runs = {lane: results.lanes[lane, clients] for lane in results.of(groups) if results.rate(lane, clients)}
    if not runs:
        return None
    below = 'Acquire and release of a key that nobody else wants'
    if any(r.kind(lane) == 'yardstick' for lane in runs):
        below += '. Dashed: no lease, to compare with'
    return bars([(None, runs, {lane: results.title(lane) for lane in runs})],
                f'{title}, {clients} client{"s" if clients > 1 else ""}', below)


def hotset(results):
    # With 8 clients, if measured
    numbers = sorted({clients for _, clients in results.hotset}, key=lambda c: (c != 8, c))
    panels = []
    for heading, durable in (('Durable', True), ('Not durable', False)):
        runs = {lane: run for (lane, c), run in results.hotset.items()
                if c == numbers[0] and r.durable(lane) == durable and run.rate}
        if runs:
            panels.append((heading, runs, {lane: results.title(lane, 'hotset') for lane in runs}))
    if not panels:
        return None
    return bars(panels, f'Ten keys that {numbers[0]} clients want',
                'Acquire, waiting for as long as it takes, and release. p50 and p99 are of the wait')


# ---------------------------------------------------------------------------
# Lines
# ---------------------------------------------------------------------------

def styles(names):
    """{name: how its line is drawn}"""
    styled = {}
    taken = {COLOURS[key] for name in names for key in COLOURS if name.startswith(key)}
    spare = [colour for colour in OTHERS if colour not in taken]
    ours = 0
    for name in names:
        marker = MARKERS[len(styled) % len(MARKERS)]
        if r.kind(name) == 'ours':
            styled[name] = {'color': PALE_BLUE if ours else BLUE, 'linewidth': 2 if ours else 2.8, 'marker': 'o',
                            'markersize': 6, 'zorder': 4}
            ours += 1
            continue
        colour = next((COLOURS[key] for key in COLOURS if name.startswith(key)), None)
        if colour is None or colour in [style['color'] for style in styled.values()]:
            colour = spare.pop(0) if spare else GREY
        styled[name] = {'color': colour, 'linewidth': 1.5, 'marker': marker, 'markersize': 5, 'zorder': 3}
        if r.kind(name) == 'yardstick':
            styled[name]['linestyle'] = '--'
    return styled


def ink(colour):
    """A colour for text: the same, darker where it is light"""
    if colour in (BLUE, PALE_BLUE, INK):
        return INK if colour == INK else BLUE
    return tuple(part * 0.8 for part in matplotlib.colors.to_rgb(colour))


def label_ends(axes, ends):
    """Names the lines at their right ends; ends are [(y, text, style)]. Names that would overlap
    are moved apart."""
    axes.figure.canvas.draw()
    gap = 12 / 72 * axes.figure.dpi
    low, high = (axes.transData.transform((0 if axes.get_xscale() == 'linear' else 1, y))[1]
                 for y in axes.get_ylim())
    placed = sorted((axes.transData.transform((1, y))[1], y, text, style) for y, text, style in
                    [(y, text, tuple(sorted(style.items(), key=str))) for y, text, style in ends])
    spots = [spot[0] for spot in placed]
    # Spread each cluster around its middle until nothing moves
    for _ in range(200):
        moved = False
        for i in range(len(spots) - 1):
            overlap = gap - (spots[i + 1] - spots[i])
            if overlap > 0.01:
                spots[i], spots[i + 1] = spots[i] - overlap / 2, spots[i + 1] + overlap / 2
                moved = True
        if spots and spots[0] < low:
            spots[0] = low
        if spots and spots[-1] > high:
            spots[-1] = high
        if not moved:
            break
    for spot, (_, _, text, style) in zip(spots, placed):
        style = dict(style)
        axes.annotate(text, (1, axes.transAxes.inverted().transform((0, spot))[1]), (10, 0),
                      xycoords='axes fraction', textcoords='offset points', va='center', fontsize=8.5,
                      color=ink(style['color']), annotation_clip=False,
                      fontweight='bold' if style['linewidth'] > 2.5 else 'normal')


def log_ticks(axis, label):
    """1, 2 and 5 of each decade, as plain numbers; 1 only if there are many decades"""
    low, high = axis.get_view_interval()
    axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5) if high / low < 2000 else (1,), numticks=40))
    axis.set_minor_locator(ticker.NullLocator())
    axis.set_major_formatter(ticker.FuncFormatter(label))


def percentiles(titles, curves, xlabel, title, below):
    """Two panels, p50 and p99 in ms; curves are {name: {x: (p50, p99)}}, in us"""
    xs = sorted({x for curve in curves.values() for x in curve})
    if not xs:
        return None
    figure, panels = plt.subplots(1, 2, figsize=(WIDTH - 1.9, 3.6), sharey=True)
    styled = styles(list(curves))
    ends = []
    for i, (axes, what) in enumerate(zip(panels, ('p50', 'p99'))):
        for name, curve in curves.items():
            points = [(xs.index(x), at[i] / 1000) for x, at in sorted(curve.items()) if at[i]]
            if not points:
                continue
            axes.plot([x for x, _ in points], [y for _, y in points], **styled[name])
            if i:
                ends.append((points[-1][1], titles[name], styled[name]))
        axes.set_yscale('log')
        axes.set_xticks(range(len(xs)))
        axes.set_xticklabels([str(x) for x in xs])
        axes.set(xlabel=xlabel, xlim=(-0.25, len(xs) - 0.75))
        axes.annotate(what, (0, 1), (2, 4), xycoords='axes fraction', textcoords='offset points', fontweight='bold')
    if not panels[0].lines and not panels[1].lines:
        plt.close(figure)
        return None
    panels[0].set_ylabel('milliseconds')
    log_ticks(panels[0].yaxis, lambda value, _: f'{value:g}')
    figure.subplots_adjust(wspace=0.08)
    label_ends(panels[1], ends)
    panels[0].set_title(title, pad=40)
    panels[0].annotate(below, (0, 1), (0, 25), xycoords='axes fraction', textcoords='offset points',
                       fontsize=8.5, color=FAINT, annotation_clip=False)
    return svg(figure)


def latency(results, groups, lanes, title):
    """By clients, for the lanes that were measured"""
    curves = {}
    for lane in lanes:
        at = {c: (run.p50, run.p99) for (name, c), run in results.lanes.items() if name == lane and run.p50}
        if at and results.groups[lane] in groups:
            curves[lane] = at
    return percentiles({lane: results.title(lane) for lane in curves}, curves, 'clients', title,
                       'From when the acquire is sent to the answer to the release; logarithmic scale')


def handoff(results):
    curves = {}
    for (mode, waiters), run in results.handoff.items():
        # Ours with a named owner would lie on the other line.
        if run.p50 is not None and mode != 'atomic_lock_named':
            curves.setdefault(mode, {})[waiters] = (run.p50, run.p99)
    titles = {mode: results.title(mode, 'handoff') for mode in curves}
    return percentiles(titles, curves, 'clients that wait', 'Handing a key over to the next one who waits',
                       'From when the release is sent to the answer with the next grant; logarithmic scale')


def curves_on(axes, results, curves, scale=1):
    """Draws {what: [(x, y)]}; returns the ends, to be named. The names omit the durability if all
    lines have the same."""
    styled, ends = styles(list(curves)), []
    for name, curve in curves.items():
        points = [(x, y / scale) for x, y in curve if y is not None]
        # Many markers make a thick line and a large file.
        style = dict(styled[name], marker='' if len(points) > 12 else styled[name]['marker'])
        axes.plot([x for x, _ in points], [y for _, y in points], **style)
        ends.append((points[-1][1], results.title(name.split()[0]), styled[name]))
    return ends


def goal(axes, y, text):
    """A dashed line that ours should stay above, or below; returns its end"""
    axes.axhline(y, color=BLUE, linewidth=1, linestyle=(0, (4, 3)), zorder=2)
    return [(y, text, {'color': BLUE, 'linewidth': 1})]


def cycles(results):
    """Speed and size over a million acquires and releases of ten keys"""
    curves, sizes = ({name: results.curve('cycles', name, unit) for name in results.whats('cycles', unit)
                      if ' ' not in name} for unit in ('pairs/s', 'bytes'))
    if not curves:
        return None
    first = next(iter(curves))
    figure, panels = plt.subplots(2 if sizes else 1, 1, figsize=(WIDTH - 1.9, 5.6 if sizes else 3), sharex=True,
                                  squeeze=False)
    speed, space = panels[0][0], panels[-1][0]
    ends = [curves_on(speed, results, curves)]
    total = r.count(curves[first][-1][0])
    speed.set_title(f'Speed over {total} pairs on ten keys, without vacuum')
    speed.set(ylabel='pairs a second', ylim=(0, speed.get_ylim()[1] * 1.08))
    thousands(speed.yaxis)
    if r.kind(first) == 'ours':
        ends[0] += goal(speed, 0.9 * curves[first][0][1], '0.9 of its beginning')
    if sizes:
        ends.append(curves_on(space, results, sizes, scale=10 ** 6))
        space.set_title('Size of table and indexes meanwhile')
        space.set(yscale='log', ylabel='MB, logarithmic scale')
        low, high = space.get_ylim()
        space.set_ylim(low / 1.3, max(high * 1.2, 3.5))
        ends[1] += goal(space, 2, '2 MB')
        log_ticks(space.yaxis, lambda value, _: f'{value:g}')
    space.set_xlabel('pairs of acquire and release so far')
    space.set_xlim(0)
    space.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: r.count(value)))
    figure.subplots_adjust(hspace=0.3)
    for panel, panel_ends in zip((speed, space), ends):
        label_ends(panel, panel_ends)
    return svg(figure)


def held(results):
    """Speed by the number of locks that others hold, a panel for each lane. Each was measured in
    turns with an empty table, and their ratio does not depend on other load."""
    names = results.whats('held', 'times_empty')
    places = sorted({0, *(x for name in names for x, _ in results.curve('held', name, 'times_empty'))})
    lanes = []
    for title, of_lane in (('durable', lambda name: ' ' not in name),
                           ('nothing flushed', lambda name: name.endswith(' relaxed'))):
        curves = {name: [(0, 1), *((places.index(x), y) for x, y in results.curve('held', name, 'times_empty'))]
                  for name in names if of_lane(name)}
        if curves:
            lanes.append((title, curves))
    if not lanes:
        return None
    figure, panels = plt.subplots(1, len(lanes), figsize=(WIDTH - 1.9, 3.2), sharey=True, squeeze=False)
    for axes, (title, curves) in zip(panels[0], lanes):
        ends = curves_on(axes, results, curves) + goal(axes, 0.85, '0.85')
        axes.set_xticks(range(len(places)))
        axes.set_xticklabels([r.count(x) for x in places])
        axes.set(xlim=(-0.25, len(places) - 0.75), xlabel='locks that others hold')
        axes.annotate(title, (0, 1), (2, 4), xycoords='axes fraction', textcoords='offset points', fontweight='bold')
    panels[0, 0].set(ylim=(0, max(1.1, panels[0, 0].get_ylim()[1])), ylabel='times that of an empty table')
    panels[0, 0].set_title('Speed beside locks that others hold', pad=26)
    figure.subplots_adjust(wspace=0.08)
    label_ends(axes, ends)
    return svg(figure)


def readers(results):
    """Speed by the number of sharers of the key, relative to the lowest number; all lines are
    ours"""
    lanes = {lane: [(n, results.shared_times(lane, n)) for n in results.shared(lane)]
             for lane in ('share', 'document', 'refused', 'status', 'is_held')}
    curves = {lane: curve for lane, curve in lanes.items() if len(curve) > 1}
    places = sorted({n for curve in curves.values() for n, _ in curve})
    if not curves:
        return None
    figure, axes = plt.subplots(figsize=(WIDTH - 2.6, 3.2))
    styled, ends = styles(list(curves)), []
    for lane, curve in curves.items():
        axes.plot([places.index(n) for n, _ in curve], [y for _, y in curve], **styled[lane])
        ends.append((curve[-1][1], results.title(lane, 'readers'), styled[lane]))
    ends += goal(axes, 0.8, '0.8 for share, paths and lock_is_held') + goal(axes, 0.5, '0.5 for the others')
    axes.set_xticks(range(len(places)))
    axes.set_xticklabels([r.count(n) for n in places])
    axes.set(xlim=(-0.25, len(places) - 0.75), xlabel='owners who share the key',
             ylim=(0, max(1.1, axes.get_ylim()[1])), ylabel=f'times that with {r.count(places[0])}')
    axes.set_title('Speed by the number of readers')
    label_ends(axes, ends)
    return svg(figure)


def draw(results):
    """{name: SVG, or None without numbers}"""
    few = ('lock_pair', 'sql_pair', 'spring_pair', 'redis_always', 'etcd')
    fast = ('lock_relaxed', 'lock_pair_relaxed', 'sql_relaxed', 'sql_pair_relaxed', 'redis_default', 'advisory_pair')
    return {
        'throughput-durable': throughput(results, r.DURABLE, 'Durable: a grant is on disk before it is answered'),
        'throughput-relaxed': throughput(results, r.RELAXED, 'Not durable: nothing is flushed'),
        'latency-durable': latency(results, r.DURABLE, few, 'Durable pairs: how long one takes'),
        'latency-relaxed': latency(results, r.RELAXED, fast, 'Pairs that are not durable: how long one takes'),
        'handoff': handoff(results),
        'hotset': hotset(results),
        'readers': readers(results),
        'cycles': cycles(results),
        'held': held(results),
    }
