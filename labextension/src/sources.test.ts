// What the sources show to a person goes through `trans`, and so that JupyterLab's tool finds it: read off their syntax.

import ts from 'typescript';
import { expect, test } from 'vitest';

interface IVite {
  glob(patterns: string[], options: object): Record<string, string>;
}

/** Not what declares `trans`, and of a page not what stands in for the kernel. */
const SOURCES = (import.meta as unknown as IVite).glob(
  ['./**/*.ts', '!./**/*.{test,d}.ts', '!./texts.ts', '!./page/*.ts', './page/page.ts'],
  { query: '?raw', import: 'default', eager: true }
);

/** Shown as they are: names and examples; and a kind of what the bottom bar says. */
const AS_THEY_ARE = new Set([
  'Chameleon Lab',
  'panel', // what the layout restorer calls it
  'run.parquet',
  'trace.parquet',
  'layer.3 attn >4MiB',
  'layer.3 >4MiB swap by:you',
  'dim'
]);

/** Attributes and properties that a person reads. */
const READ =
  /^(aria-label|aria-valuetext|caption|label|okLabel|placeholder|text|textContent|title|tooltip)$/;
/** Functions whose arguments a person reads: from the first to before the second. */
const SHOWN: Record<string, [from: number, to: number]> = {
  _say: [1, 2],
  button: [0, 2],
  fillText: [0, 1],
  h: [2, 1000],
  keyed: [0, 2],
  label: [1, 2]
};

/** All that stands in a source. */
function read(text: string): ts.Node[] {
  const below = (node: ts.Node): ts.Node[] => [node, ...node.getChildren().flatMap(below)];
  return below(ts.createSourceFile('', text, ts.ScriptTarget.ES2022, true));
}

const FILES = Object.entries(SOURCES).map(([file, text]) => ({ file, nodes: read(text) }));
const CALLS = FILES.flatMap(({ nodes }) => nodes.filter(isTranslated));

/** The last name of what is called, or assigned to; of a text itself. */
function nameOf(node: ts.Node): string {
  if (ts.isPropertyAccessExpression(node)) {
    return node.name.text;
  }
  return ts.isIdentifier(node) || ts.isStringLiteralLike(node) ? node.text : '';
}

function isTranslated(node: ts.Node): node is ts.CallExpression {
  return ts.isCallExpression(node) && /^trans\.(__|_n|_p)$/.test(node.expression.getText());
}

/** The expressions that a person reads, by where they stand. */
function shownOf(node: ts.Node): readonly ts.Expression[] {
  if (ts.isPropertyAssignment(node)) {
    const isLabel = READ.test(nameOf(node.name)) || ts.isArrowFunction(node.initializer);
    return isLabel ? [node.initializer] : [];
  }
  if (ts.isBinaryExpression(node)) {
    const isSet = node.operatorToken.kind === ts.SyntaxKind.EqualsToken;
    return isSet && READ.test(nameOf(node.left)) ? [node.right] : [];
  }
  if (!ts.isCallExpression(node)) {
    return [];
  }
  const called = nameOf(node.expression);
  if (called === 'setAttribute') {
    return READ.test(nameOf(node.arguments[0])) ? [node.arguments[1]] : [];
  }
  return Object.hasOwn(SHOWN, called) ? node.arguments.slice(...SHOWN[called]) : [];
}

/** The texts that an expression may be, or be made of; not those that it calls, looks up or compares with. */
function textsOf(node: ts.Node): string[] {
  if (ts.isStringLiteralLike(node) || ts.isTemplateLiteralToken(node)) {
    return [node.text];
  }
  const isUnread =
    ts.isCallExpression(node) ||
    ts.isElementAccessExpression(node) ||
    ts.isObjectLiteralExpression(node) ||
    ts.isBlock(node) ||
    (ts.isBinaryExpression(node) && /^[!=]==$/.test(node.operatorToken.getText()));
  return isUnread ? [] : node.getChildren().flatMap(textsOf);
}

/** What is shown without `trans`. */
function forgotten(nodes: ts.Node[]): string[] {
  const texts = nodes.flatMap(shownOf).flatMap(textsOf);
  return texts.filter(text => /\p{L}{2,}/u.test(text) && !AS_THEY_ARE.has(text));
}

test.each([
  ["h('p', { title: a ? 'none' : b })", ['none']],
  [`h('p', {}, \`\${a} \${b ? 'found' : c} here\`)`, ['found', ' here']],
  ["node.setAttribute('aria-label', 'keys')", ['keys']],
  ["a = { name: () => 'Module', id: 'b' }", ['Module']],
  ["h('p', { class: 'dim' }, keys.has('Page Down'), map['Shift'], a === 'Module' && b)", []],
  ["const kind = 'Module'; c.font = 'bold 10px sans serif'; new Event('My Event')", []],
  ["h('p', {}, trans.__('none'))", []]
])('of %s a translator never sees %j', (source, texts) => {
  expect(forgotten(read(source))).toEqual(texts);
});

test.each(FILES)('what $file shows goes through the translator', ({ nodes }) => {
  expect(forgotten(nodes)).toEqual([]);
});

function textOf(node: ts.Node): string {
  return node.getText();
}

/** Of a call, what a translator gets (with a context the second, with a plural both), and what stands in its places. */
function partsOf(call: ts.CallExpression) {
  const kind = nameOf(call.expression);
  const literals = kind === '__' ? 1 : 2;
  return { kind, ids: call.arguments.slice(0, literals), given: call.arguments.slice(literals) };
}

test('the tool that collects the texts finds them: literals, in calls of `trans`', () => {
  const others = FILES.flatMap(({ nodes }) => nodes)
    .filter(node => ts.isIdentifier(node) && node.text === 'trans')
    .filter(({ parent }) => !ts.isImportSpecifier(parent) && !isTranslated(parent.parent));
  expect(others.map(({ parent }) => textOf(parent))).toEqual([]);
  const computed = CALLS.filter(call => !partsOf(call).ids.every(ts.isStringLiteral));
  expect(computed.map(textOf)).toEqual([]);
});

/** Whether what is below runs later than its file is loaded: not what is called there, or what a method is given. */
function isLater(node: ts.Node): boolean {
  if (ts.isPropertyDeclaration(node)) {
    return !node.modifiers?.some(({ kind }) => kind === ts.SyntaxKind.StaticKeyword);
  }
  const user = ts.isParenthesizedExpression(node.parent) ? node.parent.parent : node.parent;
  const isUsed =
    ts.isCallExpression(user) &&
    (!user.arguments.some(given => given === node) ||
      ts.isPropertyAccessExpression(user.expression));
  return ts.isFunctionLike(node) && !isUsed;
}

function early(calls: ts.CallExpression[]): string[] {
  return calls
    .filter(call => !ts.findAncestor(call, one => one.parent && isLater(one)))
    .map(textOf);
}

test('texts are asked for once JupyterLab has said which language it is, not at load', () => {
  const source = `const a = trans.__('a'); class A { static a = trans.__('a'); b = trans.__('b'); }
    const b = view(() => trans.__('b')); const c = () => [1].map(n => trans.__('c'));
    (() => trans.__('a'))(); [1].map(n => trans.__('a'));`;
  expect(early(read(source).filter(isTranslated))).toEqual(Array(4).fill("trans.__('a')"));
  expect(early(CALLS)).toEqual([]);
});

test('each place in a text is given, and all that is given has a place', () => {
  const wrong = CALLS.filter(call => {
    const { kind, ids, given } = partsOf(call);
    const places = given.map((_, i) => `%${i + 1}`);
    return ids.slice(kind === '_p' ? 1 : 0).some(id => {
      const found = new Set(nameOf(id).replaceAll('%%', '').match(/%\d+/g));
      if (kind === '_n') {
        found.add('%1'); // the bare number need not stand in the text
      }
      return found.size !== places.length || places.some(place => !found.has(place));
    });
  });
  expect(wrong.map(textOf)).toEqual([]);
});

test('a text has one plural or none, for translations are looked up by its singular', () => {
  const plurals = new Map<string, string>();
  const twice = CALLS.filter(call => {
    const { kind, ids } = partsOf(call);
    const [key, plural] = kind === '_n' ? ids.map(textOf) : [ids.map(textOf).join(), ''];
    const known = plurals.get(key) ?? plural;
    plurals.set(key, known);
    return known !== plural;
  });
  expect(twice.map(textOf)).toEqual([]);
});
