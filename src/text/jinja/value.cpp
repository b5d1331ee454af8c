#include "text/jinja/value.hpp"

#include "text/jinja/loop.hpp"

namespace lockstep::text::jinja {
namespace {

std::string_view sequence_name(SequenceKind kind) {
  switch (kind) {
    case SequenceKind::List:
      return "list";
    case SequenceKind::Tuple:
      return "tuple";
    case SequenceKind::Range:
      return "range";
    case SequenceKind::Generator:
      return "generator";
    case SequenceKind::Keys:
      return "dict_keys";
    case SequenceKind::Values:
      return "dict_values";
    case SequenceKind::Items:
      return "dict_items";
    case SequenceKind::Group:
      return "_GroupTuple";
  }
  return "list";
}

}  // namespace

std::uint32_t Value::depth() const {
  if (const Sequence* list = sequence()) return list->depth;
  if (const Dict* mapping = dict()) return mapping->depth;
  if (const Function* callable = function()) return callable->self.depth() + 1;
  return 0;
}

const Value* Namespace::find(std::string_view name) const {
  for (const auto& [key, value] : attributes) {
    if (key == name) return &value;
  }
  return nullptr;
}

std::string_view type_name(const Value& value) {
  struct Names {
    std::string_view operator()(const Undefined&) const { return "Undefined"; }
    std::string_view operator()(const None&) const { return "NoneType"; }
    std::string_view operator()(bool) const { return "bool"; }
    std::string_view operator()(std::int64_t) const { return "int"; }
    std::string_view operator()(const BigInteger&) const { return "int"; }
    std::string_view operator()(double) const { return "float"; }
    std::string_view operator()(const TextPtr&) const { return "str"; }
    std::string_view operator()(const SequencePtr& list) const { return sequence_name(list->kind); }
    std::string_view operator()(const DictPtr&) const { return "dict"; }
    std::string_view operator()(const Namespace*) const { return "Namespace"; }
    std::string_view operator()(const FunctionPtr& f) const { return f->macro != nullptr ? "Macro" : "function"; }
    std::string_view operator()(const LoopPtr&) const { return "LoopContext"; }
  };
  return std::visit(Names{}, value.data());
}

bool is_truthy(const Value& value) {
  struct Truth {
    bool operator()(const Undefined&) const { return false; }
    bool operator()(const None&) const { return false; }
    bool operator()(bool flag) const { return flag; }
    bool operator()(std::int64_t number) const { return number != 0; }
    bool operator()(const BigInteger&) const { return true; }
    bool operator()(double number) const { return number != 0; }
    bool operator()(const TextPtr& text) const { return !text->bytes.empty(); }
    bool operator()(const SequencePtr& list) const {
      return list->kind == SequenceKind::Generator || !list->items.empty();
    }
    bool operator()(const DictPtr& dict) const { return !dict->entries.empty(); }
    bool operator()(const Namespace*) const { return true; }
    bool operator()(const FunctionPtr&) const { return true; }
    bool operator()(const LoopPtr&) const { return true; }
  };
  return std::visit(Truth{}, value.data());
}

bool is_generator(const Value& value) {
  const Sequence* list = value.sequence();
  return list != nullptr && list->kind == SequenceKind::Generator;
}

bool is_list(const Value& value) {
  const Sequence* list = value.sequence();
  return list != nullptr && list->kind == SequenceKind::List;
}

bool is_tuple(const Value& value) {
  const Sequence* list = value.sequence();
  return list != nullptr && (list->kind == SequenceKind::Tuple || list->kind == SequenceKind::Group);
}

}  // namespace lockstep::text::jinja
