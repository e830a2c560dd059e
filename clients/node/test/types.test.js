// The types, by the compiler, and `await using` as it compiles that; natively where node has it

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { readFileSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { after, before } from 'node:test';
import { startServer, test } from './server.js';

const root = new URL('..', import.meta.url).pathname;
const out = join(root, 'types-compiled');
let server;

before(async () => { server = await startServer(); });
after(async () => {
  await server.end();
  rmSync(out, { recursive: true, force: true });
});

function compile(target) {
  execFileSync(process.execPath, [join(root, 'node_modules/typescript/bin/tsc'), '--strict', '--noUncheckedIndexedAccess', '--exactOptionalPropertyTypes',
    '--target', target, '--lib', 'ES2022,DOM,ESNext.Disposable', '--module', 'NodeNext', '--moduleResolution', 'NodeNext', '--types', 'node', '--rootDir', join(root, 'test'),
    '--outDir', out, join(root, 'test/types.ts')], { cwd: root, stdio: ['ignore', 'inherit', 'inherit'] });
  return execFileSync(process.execPath, [join(out, 'types.js'), JSON.stringify(server.config())], { encoding: 'utf8', cwd: root });
}
const expected = 'types true\ntrue false\nexclusive false\nacquired acquired\nfunction function function\n';

test('types, and await using for any node', () => assert.equal(compile('ES2022'), expected));

const native = (() => {
  try {
    return Boolean(new Function('return async () => { await using x = null; }'));
  } catch {
    return false;
  }
})();
test('await using of node itself', { skip: !native && 'this node has none' }, () => {
  const output = compile('ESNext');
  assert.match(readFileSync(join(out, 'types.js'), 'utf8'), /await using lock/);
  assert.equal(output, expected);
});
