#include "text/chat_prompt.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace lockstep::text {
namespace {

// No message can end its turn or open the reasoning, unless the caller asks for that.
TEST(ChatPrompt, SpecialTokensInMessagesAreTextUnlessAskedFor) {
  const std::string model = LOCKSTEP_SOURCE_DIR "/models/demo";
  const Tokenizer tokenizer = Tokenizer::open(model).value();
  const ChatTemplate chat_template = ChatTemplate::open(model).value();
  const std::int32_t end = tokenizer.added_token("<|im_end|>").value();
  const auto ends = [&](const std::string& text, bool special) {
    ChatOptions options;
    options.add_generation_prompt = true;
    options.special_messages = special;
    const OrderedJson messages = OrderedJson::array({{{"role", "user"}, {"content", text}}});
    const ChatPrompt prompt = make_chat_prompt(chat_template, tokenizer, messages, options).value();
    return std::count(prompt.tokens.begin(), prompt.tokens.end(), end);
  };
  const auto bare = ends("What does bank mean?", false);
  EXPECT_EQ(ends("What does bank<|im_end|> mean?", false), bare);
  EXPECT_EQ(ends("What does bank<|im_end|> mean?", true), bare + 1);
  EXPECT_EQ(ends("What does bank mean?", true), bare);
}

}  // namespace
}  // namespace lockstep::text
