// Statements.

#include "text/jinja/interpreter.hpp"

#include "text/jinja/format.hpp"
#include "text/jinja/globals.hpp"
#include "text/jinja/interpreter_scope.hpp"

namespace lockstep::text::jinja {

Interpreter::Interpreter(const Program& program, const TemplateLimits& limits, std::function<std::tm()> clock)
    : runtime_(limits, std::move(clock)), program_(program), frame_(std::make_shared<Frame>()) {
  for (const Global& global : globals()) {
    if (!mentions(std::string(global.name))) continue;
    auto function = std::make_shared<Function>();
    function->name = global.name;
    function->native = global.native;
    define(std::string(global.name), Value(FunctionPtr(std::move(function))));
  }
}

void Interpreter::define(const std::string& name, Value value) {
  const auto found = program_.names.find(name);
  if (found != program_.names.end()) set(found->second, std::move(value));
}

Status Interpreter::run(TextBuilder& out) {
  const Output output(*this, out);
  const auto flow = execute(program_.body);
  if (!flow) {
    if (runtime_.raised()) return tl::unexpected(flow.error());
    return with_context(flow.error(), fmt::format("chat template, line {}", error_line_));
  }
  if (out.full()) {
    return fail(ErrorKind::Limit, "the chat template writes more than {} bytes", runtime_.limits().max_output_bytes);
  }
  return {};
}

void Interpreter::set(NameId id, Value value) {
  for (auto& [key, old] : frame_->variables) {
    if (key != id) continue;
    old = std::move(value);
    return;
  }
  frame_->variables.emplace_back(id, std::move(value));
}

const Value* Interpreter::find(NameId id) const {
  for (const Frame* frame = frame_.get(); frame != nullptr; frame = frame->parent.get()) {
    for (const auto& [key, value] : frame->variables) {
      if (key == id) return &value;
    }
  }
  return nullptr;
}

Status Interpreter::enter(std::uint32_t line) {
  if (depth_ >= runtime_.limits().max_depth) {
    error_line_ = line;
    return fail(ErrorKind::Limit, "calls nested deeper than {} levels", runtime_.limits().max_depth);
  }
  ++depth_;
  return runtime_.budget().spend(1);
}

Result<Interpreter::Flow> Interpreter::execute(const Block& block) {
  for (const Stmt& stmt : block) {
    const Flow flow = LOCKSTEP_TRY(execute(stmt));
    if (flow != Flow::Next) return flow;
  }
  return Flow::Next;
}

Result<Interpreter::Flow> Interpreter::execute(const Stmt& stmt) {
  LOCKSTEP_TRY(enter(stmt.line));
  auto flow = dispatch(stmt);
  --depth_;
  if (!flow && error_line_ == 0) error_line_ = stmt.line;
  return flow;
}

Result<Interpreter::Flow> Interpreter::dispatch(const Stmt& stmt) {
  switch (stmt.kind) {
    case StmtKind::Data:
      out_->append(*stmt.text);
      if (out_->full()) return fail(ErrorKind::Limit, "the template writes too much");
      return Flow::Next;
    case StmtKind::Output:
      return run_output(stmt);
    case StmtKind::If:
      return run_if(stmt);
    case StmtKind::For:
      return run_for(stmt);
    case StmtKind::Set:
      return run_set(stmt);
    case StmtKind::SetBlock:
      return run_set_block(stmt);
    case StmtKind::Macro:
      return run_macro(stmt);
    case StmtKind::Call:
      return run_call(stmt);
    case StmtKind::FilterBlock:
      return run_filter_block(stmt);
    case StmtKind::With:
      return run_with(stmt);
    case StmtKind::Scope: {
      const Scope scope(*this);
      return execute(stmt.body);
    }
    case StmtKind::Break:
      return Flow::Break;
    case StmtKind::Continue:
      return Flow::Continue;
  }
  return Flow::Next;
}

[[gnu::noinline]] Result<Interpreter::Flow> Interpreter::run_output(const Stmt& stmt) {
  const Value value = LOCKSTEP_TRY(evaluate(*stmt.expression));
  const TextPtr text = LOCKSTEP_TRY(to_text(runtime_, value));
  LOCKSTEP_TRY(runtime_.budget().spend_bytes(text->bytes.size()));
  out_->append(*text);
  if (out_->full()) return fail(ErrorKind::Limit, "the template writes too much");
  return Flow::Next;
}

[[gnu::noinline]] Result<Interpreter::Flow> Interpreter::run_if(const Stmt& stmt) {
  for (const Branch& branch : stmt.branches) {
    const Value condition = LOCKSTEP_TRY(evaluate(*branch.condition));
    if (is_truthy(condition)) return execute(branch.body);
  }
  return execute(stmt.otherwise);
}

/// The next element that passes the condition of a loop, which sees it in a scope of its own.
[[gnu::noinline]] Result<std::optional<Value>> Interpreter::next_item(const Stmt& stmt, const Sequence& items,
                                                                      std::size_t& index, const FramePtr& around) {
  while (index < items.items.size()) {
    LOCKSTEP_TRY(runtime_.budget().spend(1));
    const Value& item = items.items[index++];
    if (stmt.condition == nullptr) return item;
    const Scope scope(*this, around);
    LOCKSTEP_TRY(assign(stmt.target, item));
    const Value passes = LOCKSTEP_TRY(evaluate(*stmt.condition));
    if (is_truthy(passes)) return item;
  }
  return std::nullopt;
}

[[gnu::noinline]] Result<Interpreter::Flow> Interpreter::run_for(const Stmt& stmt) {
  const Value iterable = LOCKSTEP_TRY(evaluate(*stmt.expression));
  const SequencePtr items = LOCKSTEP_TRY(runtime_.iterate(iterable));
  const auto loop = std::make_shared<Loop>();
  loop->source = [this, &stmt, items, index = std::size_t{0}, around = frame_]() mutable {
    return next_item(stmt, *items, index, around);
  };
  auto flow = run_iterations(stmt, loop);
  const bool empty = loop->index0 < 0;
  loop->finish();
  if (!flow || !empty) return flow;
  const Scope scope(*this);
  return execute(stmt.otherwise);
}

[[gnu::noinline]] Result<Interpreter::Flow> Interpreter::run_iterations(const Stmt& stmt, const LoopPtr& loop) {
  while (true) {
    const auto item = LOCKSTEP_TRY(loop->next());
    if (!item) return Flow::Next;
    LOCKSTEP_TRY(runtime_.budget().spend(3));
    const Scope scope(*this);
    set(program_.loop, Value(LoopPtr(loop)));
    LOCKSTEP_TRY(assign(stmt.target, *item));
    if (LOCKSTEP_TRY(execute(stmt.body)) == Flow::Break) return Flow::Next;
  }
}

Status Interpreter::assign(const Target& target, const Value& value) {
  if (target.is_tuple) {
    const SequencePtr parts = LOCKSTEP_TRY(runtime_.iterate(value));
    if (parts->items.size() != target.elements.size()) {
      return fail(ErrorKind::Invalid, "cannot unpack {} values into {} names", parts->items.size(),
                  target.elements.size());
    }
    for (std::size_t i = 0; i < parts->items.size(); ++i) LOCKSTEP_TRY(assign(target.elements[i], parts->items[i]));
    return {};
  }
  if (target.attribute.empty()) {
    set(target.id, value);
    return {};
  }
  const Value* const found = find(target.id);
  Namespace* const space = found == nullptr ? nullptr : found->name_space();
  if (space == nullptr) return fail(ErrorKind::Invalid, "'{}' is not a namespace", target.name);
  return runtime_.set_attribute(*space, target.attribute, value);
}

[[gnu::noinline]] Result<Interpreter::Flow> Interpreter::run_set(const Stmt& stmt) {
  const Value value = LOCKSTEP_TRY(evaluate(*stmt.expression));
  LOCKSTEP_TRY(assign(stmt.target, value));
  return Flow::Next;
}

[[gnu::noinline]] Result<Interpreter::Flow> Interpreter::capture(const Block& block, Value& text) {
  TextBuilder builder(runtime_.budget());
  const Output output(*this, builder);
  const Scope scope(*this);
  const Flow flow = LOCKSTEP_TRY(execute(block));
  text = Value(LOCKSTEP_TRY(builder.finish()));
  return flow;
}

[[gnu::noinline]] Result<Interpreter::Flow> Interpreter::run_set_block(const Stmt& stmt) {
  Value text;
  const Flow flow = LOCKSTEP_TRY(capture(stmt.body, text));
  if (flow != Flow::Next) return flow;
  if (stmt.expression != nullptr) {
    block_input_ = std::move(text);
    text = LOCKSTEP_TRY(evaluate(*stmt.expression));
  }
  LOCKSTEP_TRY(assign(stmt.target, text));
  return Flow::Next;
}

[[gnu::noinline]] Result<Interpreter::Flow> Interpreter::run_filter_block(const Stmt& stmt) {
  Value text;
  const Flow flow = LOCKSTEP_TRY(capture(stmt.body, text));
  if (flow != Flow::Next) return flow;
  block_input_ = std::move(text);
  return run_output(stmt);
}

[[gnu::noinline]] Result<Interpreter::Flow> Interpreter::run_with(const Stmt& stmt) {
  std::vector<Value> values;
  for (const auto& [target, expression] : stmt.bindings) values.push_back(LOCKSTEP_TRY(evaluate(*expression)));
  const Scope scope(*this);
  for (std::size_t i = 0; i < values.size(); ++i) LOCKSTEP_TRY(assign(stmt.bindings[i].first, values[i]));
  return execute(stmt.body);
}

Result<Value> Interpreter::make_macro(const Macro& macro) {
  auto function = std::make_shared<Function>();
  MacroClosure& closure = closures_.emplace_back();
  closure.macro = &macro;
  closure.frame = frame_;
  // A closure and the scope that it keeps alive stay until the end.
  closure.charge = LOCKSTEP_TRY(
      runtime_.budget().charge(sizeof(MacroClosure) + sizeof(Frame) + 32 + frame_->variables.size() * sizeof(Value)));
  function->name = macro.name;
  function->macro = &closure;
  return Value(FunctionPtr(std::move(function)));
}

[[gnu::noinline]] Result<Interpreter::Flow> Interpreter::run_macro(const Stmt& stmt) {
  Value macro = LOCKSTEP_TRY(make_macro(*stmt.macro));
  set(stmt.macro->id, std::move(macro));
  return Flow::Next;
}

[[gnu::noinline]] Result<Interpreter::Flow> Interpreter::run_call(const Stmt& stmt) {
  const Expr& call = *stmt.expression;
  const Value callee = LOCKSTEP_TRY(evaluate(*call.operands[0]));
  Arguments arguments = LOCKSTEP_TRY(arguments_of(call));
  Value caller = LOCKSTEP_TRY(make_macro(*stmt.macro));
  arguments.named.emplace_back("caller", std::move(caller));
  const Value result = LOCKSTEP_TRY(call_value(callee, arguments));
  const TextPtr text = LOCKSTEP_TRY(to_text(runtime_, result));
  out_->append(*text);
  if (out_->full()) return fail(ErrorKind::Limit, "the template writes too much");
  return Flow::Next;
}

}  // namespace lockstep::text::jinja
