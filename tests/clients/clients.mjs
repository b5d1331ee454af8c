// Real clients against `lockstep serve` with the demo model: npm's openai, @anthropic-ai/sdk and
// @ai-sdk/openai-compatible, unmodified. Started by run; takes the server's base URL and key from the environment.
import assert from 'node:assert/strict';
import {createHash} from 'node:crypto';
import {createRequire} from 'node:module';
import {pathToFileURL} from 'node:url';

const base = process.env.LOCKSTEP_TEST_URL;
const key = process.env.LOCKSTEP_TEST_KEY;
const require = createRequire(process.env.LOCKSTEP_TEST_MODULES + '/package.json');
const load = async (name) => import(pathToFileURL(require.resolve(name)).href);
const question = 'What does bank mean?';
const sha = (text) => createHash('sha256').update(text).digest('hex');
// The one tool that the demo model was trained to call, and a message that makes it do so. Its form is that of each API.
const order = 'Look up the word bank.';
const tool = {name: 'lookup_word', description: 'Looks a word up in the dictionary.'};
const parameters = {type: 'object', properties: {word: {type: 'string'}}, required: ['word']};
const tools = [{type: 'function', function: {...tool, parameters}}];
const argumentsOf = (call) => JSON.parse(call.arguments);

const cases = {};

cases['openai: chat, alone and streamed'] = async () => {
  const {OpenAI} = await load('openai');
  const client = new OpenAI({baseURL: base + '/v1', apiKey: key, maxRetries: 0});
  assert.equal((await client.models.list()).data.length, 1);
  const request = {model: 'demo', messages: [{role: 'user', content: question}], temperature: 0, seed: 1};
  const whole = await client.chat.completions.create(request);
  const message = whole.choices[0].message;
  assert.match(message.content, /senses/);
  assert.equal(whole.choices[0].finish_reason, 'stop');
  assert.equal(whole.lockstep.choices[0].text_sha256, sha(message.content));
  assert.equal(whole.lockstep.choices[0].reasoning_sha256, sha(message.reasoning_content));
  let content = '', reasoning = '', usage, finish;
  const stream = await client.chat.completions.create(
      {...request, stream: true, stream_options: {include_usage: true}});
  for await (const chunk of stream) {
    const choice = chunk.choices[0];
    content += choice?.delta.content ?? '';
    reasoning += choice?.delta.reasoning_content ?? '';
    finish = choice?.finish_reason ?? finish;
    usage = chunk.usage ?? usage;
  }
  assert.equal(content, message.content);
  assert.equal(reasoning, message.reasoning_content);
  assert.equal(finish, 'stop');
  assert.equal(usage.completion_tokens, whole.usage.completion_tokens);
};

cases['openai: logprobs, n, stop, completions'] = async () => {
  const {OpenAI} = await load('openai');
  const client = new OpenAI({baseURL: base + '/v1', apiKey: key, maxRetries: 0});
  const chat = await client.chat.completions.create({
    model: 'demo', messages: [{role: 'user', content: question}], n: 2, seed: 5, max_tokens: 40, logprobs: true,
    top_logprobs: 2,
  });
  assert.equal(chat.choices.length, 2);
  assert.equal(chat.choices[0].logprobs.content.length, chat.lockstep.choices[0].decode_tokens);
  assert.equal(chat.choices[0].logprobs.content[0].top_logprobs.length, 2);
  const text = await client.completions.create(
      {model: 'demo', prompt: 'bank has', max_tokens: 8, temperature: 0, echo: true, logprobs: 1});
  assert.ok(text.choices[0].text.startsWith('bank has'));
  assert.equal(text.choices[0].logprobs.token_logprobs[0], null);
};

cases['openai: tools, alone, streamed and with a result'] = async () => {
  const {OpenAI} = await load('openai');
  const client = new OpenAI({baseURL: base + '/v1', apiKey: key, maxRetries: 0});
  const messages = [{role: 'user', content: order}];
  const request = {model: 'demo', messages, tools, temperature: 0, seed: 1};
  const first = await client.chat.completions.create(request);
  const reply = first.choices[0].message;
  assert.equal(first.choices[0].finish_reason, 'tool_calls');
  assert.equal(reply.content, null);
  assert.equal(reply.tool_calls.length, 1);
  const call = reply.tool_calls[0];
  assert.equal(call.type, 'function');
  assert.equal(call.function.name, tool.name);
  assert.deepEqual(argumentsOf(call.function), {word: 'bank'});

  const pieces = [];
  let finish;
  for await (const chunk of await client.chat.completions.create({...request, stream: true})) {
    pieces.push(...(chunk.choices[0]?.delta.tool_calls ?? []));
    finish = chunk.choices[0]?.finish_reason ?? finish;
  }
  assert.equal(finish, 'tool_calls');
  assert.ok(pieces.every((piece) => piece.index === 0));
  assert.equal(pieces.filter((piece) => piece.id).length, 1);
  assert.equal(pieces[0].function.name, tool.name);
  assert.equal(pieces.map((piece) => piece.function.arguments ?? '').join(''), call.function.arguments);
  // The client's own assembly of the pieces.
  const assembled = await client.chat.completions.stream(request).finalChatCompletion();
  assert.equal(assembled.choices[0].message.tool_calls.length, 1);
  assert.deepEqual(argumentsOf(assembled.choices[0].message.tool_calls[0].function), {word: 'bank'});

  const result = {role: 'tool', tool_call_id: call.id, content: 'sloping land'};
  const second = await client.chat.completions.create({...request, max_tokens: 64, messages: [...messages, reply, result]});
  assert.ok(second.usage.prompt_tokens > first.usage.prompt_tokens);
};

cases['openai: responses, alone and streamed'] = async () => {
  const {OpenAI} = await load('openai');
  const client = new OpenAI({baseURL: base + '/v1', apiKey: key, maxRetries: 0});
  const request = {model: 'demo', input: question, temperature: 0};
  const whole = await client.responses.create(request);
  assert.equal(whole.status, 'completed');
  assert.match(whole.output_text, /senses/);
  const stream = client.responses.stream(request);
  let text = '';
  stream.on('response.output_text.delta', (event) => { text += event.delta; });
  const final = await stream.finalResponse();
  assert.equal(text, whole.output_text);
  assert.equal(final.output_text, whole.output_text);
};

cases['openai: responses with tools, alone, streamed and with a result'] = async () => {
  const {OpenAI} = await load('openai');
  const client = new OpenAI({baseURL: base + '/v1', apiKey: key, maxRetries: 0});
  const request = {model: 'demo', input: order, temperature: 0, tools: [{type: 'function', ...tool, parameters, strict: false}]};
  const calls = (response) => response.output.filter((item) => item.type === 'function_call');
  const whole = await client.responses.create(request);
  assert.equal(whole.status, 'completed');
  assert.equal(calls(whole).length, 1);
  const [call] = calls(whole);
  assert.equal(call.name, tool.name);
  assert.deepEqual(argumentsOf(call), {word: 'bank'});
  const stream = client.responses.stream(request);
  let pieces = '';
  stream.on('response.function_call_arguments.delta', (event) => { pieces += event.delta; });
  const final = await stream.finalResponse();
  assert.equal(pieces, call.arguments);
  assert.equal(calls(final).length, 1);
  assert.equal(calls(final)[0].name, tool.name);
  assert.equal(calls(final)[0].arguments, call.arguments);
  const input = [{role: 'user', content: order}, ...whole.output,
                 {type: 'function_call_output', call_id: call.call_id, output: 'sloping land'}];
  const second = await client.responses.create({...request, input, max_output_tokens: 64});
  assert.ok(second.usage.input_tokens > whole.usage.input_tokens);
};

cases['openai: errors and aborts'] = async () => {
  const {OpenAI} = await load('openai');
  const client = new OpenAI({baseURL: base + '/v1', apiKey: key, maxRetries: 0});
  const bad = {model: 'demo', messages: [{role: 'user', content: 'x'}], temperature: 9};
  await assert.rejects(client.chat.completions.create(bad), (error) => error.status === 400 && error.param === 'temperature');
  await assert.rejects(new OpenAI({baseURL: base + '/v1', apiKey: 'wrong', maxRetries: 0}).models.list(),
                       (error) => error.status === 401);
  const stream = await client.chat.completions.create(
      {model: 'demo', messages: [{role: 'user', content: question}], stream: true});
  for await (const chunk of stream) {
    if (chunk.choices[0]?.delta) break;  // leaves the loop and so closes the connection
  }
};

cases['anthropic: messages, alone and streamed'] = async () => {
  const {default: Anthropic} = await load('@anthropic-ai/sdk');
  const client = new Anthropic({baseURL: base, apiKey: key, maxRetries: 0});
  const request = {model: 'demo', max_tokens: 2048, temperature: 0, messages: [{role: 'user', content: question}],
                   thinking: {type: 'enabled', budget_tokens: 1024}};
  const whole = await client.messages.create(request);
  assert.equal(whole.stop_reason, 'end_turn');
  assert.equal(whole.content[0].type, 'thinking');
  assert.match(whole.content[1].text, /senses/);
  const final = await client.messages.stream(request).finalMessage();
  assert.equal(final.content[1].text, whole.content[1].text);
  assert.equal(final.content[0].thinking, whole.content[0].thinking);
  const counted = await client.messages.countTokens({model: 'demo', messages: request.messages, thinking: request.thinking});
  const used = whole.usage.input_tokens + whole.usage.cache_read_input_tokens;
  assert.equal(counted.input_tokens, used);
  await assert.rejects(client.messages.create({...request, temperature: 9}), (error) => error.status === 400);
};

cases['anthropic: tools, alone, streamed and with a result'] = async () => {
  const {default: Anthropic} = await load('@anthropic-ai/sdk');
  const client = new Anthropic({baseURL: base, apiKey: key, maxRetries: 0});
  const request = {model: 'demo', max_tokens: 400, temperature: 0, messages: [{role: 'user', content: order}],
                   tools: [{...tool, input_schema: parameters}]};
  const uses = (message) => message.content.filter((block) => block.type === 'tool_use');
  const whole = await client.messages.create(request);
  assert.equal(whole.stop_reason, 'tool_use');
  assert.equal(uses(whole).length, 1);
  const [use] = uses(whole);
  assert.equal(use.name, tool.name);
  assert.deepEqual(use.input, {word: 'bank'});
  const stream = client.messages.stream(request);
  let pieces = '';
  stream.on('inputJson', (piece) => { pieces += piece; });
  const final = await stream.finalMessage();
  assert.deepEqual(JSON.parse(pieces), use.input);
  assert.equal(final.stop_reason, 'tool_use');
  assert.equal(uses(final).length, 1);
  assert.equal(uses(final)[0].name, tool.name);
  assert.deepEqual(uses(final)[0].input, use.input);
  const result = {type: 'tool_result', tool_use_id: use.id, content: 'sloping land'};
  const second = await client.messages.create({
    ...request, max_tokens: 64,
    messages: [...request.messages, {role: 'assistant', content: whole.content}, {role: 'user', content: [result]}],
  });
  const tokens = ({usage}) => usage.input_tokens + usage.cache_read_input_tokens;
  assert.ok(tokens(second) > tokens(whole));
};

cases['ai-sdk: generateText and streamText of @ai-sdk/openai-compatible'] = async () => {
  const {createOpenAICompatible} = await load('@ai-sdk/openai-compatible');
  const provider = createOpenAICompatible({name: 'lockstep', baseURL: base + '/v1', apiKey: key, includeUsage: true});
  // The provider's own interface: the package `ai` on top of it needs a newer Node.
  const model = provider.chatModel('demo');
  const prompt = [{role: 'user', content: [{type: 'text', text: question}]}];
  const whole = await model.doGenerate({prompt, temperature: 0, seed: 1});
  const text = whole.content.filter((part) => part.type === 'text').map((part) => part.text).join('');
  assert.match(text, /senses/);
  const {stream} = await model.doStream({prompt, temperature: 0, seed: 1});
  let streamed = '', reasoning = '';
  for await (const part of stream) {
    if (part.type === 'text-delta') streamed += part.delta;
    if (part.type === 'reasoning-delta') reasoning += part.delta;
    assert.notEqual(part.type, 'error', JSON.stringify(part));
  }
  assert.equal(streamed, text);
  assert.ok(reasoning.length > 0);
};

let failed = 0;
for (const [name, run] of Object.entries(cases)) {
  try {
    await run();
    console.log(`ok      ${name}`);
  } catch (error) {
    failed++;
    console.log(`FAILED  ${name}\n${error.stack}`);
  }
}
process.exit(failed === 0 ? 0 : 1);
