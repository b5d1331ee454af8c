// Scopes and outputs that end with a C++ block, however it is left.
#pragma once

#include "text/jinja/interpreter.hpp"

namespace lockstep::text::jinja {

/// A scope of variables inside another one.
class Interpreter::Scope {
 public:
  Scope(Interpreter& interpreter, FramePtr parent) : interpreter_(interpreter), outer_(interpreter.frame_) {
    interpreter_.frame_ = std::make_shared<Frame>();
    interpreter_.frame_->parent = std::move(parent);
  }
  explicit Scope(Interpreter& interpreter) : Scope(interpreter, interpreter.frame_) {}
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;
  ~Scope() { interpreter_.frame_ = std::move(outer_); }

 private:
  Interpreter& interpreter_;
  FramePtr outer_;
};

/// Sends what is written to another text.
class Interpreter::Output {
 public:
  Output(Interpreter& interpreter, TextBuilder& out) : interpreter_(interpreter), outer_(interpreter.out_) {
    interpreter_.out_ = &out;
  }
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;
  ~Output() { interpreter_.out_ = outer_; }

 private:
  Interpreter& interpreter_;
  TextBuilder* outer_;
};

}  // namespace lockstep::text::jinja
