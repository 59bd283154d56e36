#include "text/fingerprint.h"

#include <algorithm>
#include <array>

#include "base/sha256.h"

namespace hexport {
namespace {

constexpr std::array<std::string_view, 200> kProbes = {
    // clang-format off
    "hello",
    "Hello",
    "HELLO",
    "hELLO",
    "the",
    "The",
    "you're",
    "don't",
    "I'll",
    "we've",
    "it's",
    "she'd",
    "DON'T",
    "I'M",
    "y'all",
    "can't",
    "o'clock",
    "rock'n'roll",
    "hello world",
    "  hello",
    " hello",
    "hello  world",
    "hello\tworld",
    "hello\nworld",
    "hello\r\nworld",
    "\n",
    "\n\n",
    "\n\n\n ",
    "\n\n ",
    "  ",
    " ",
    "    ",
    "\t",
    "\t\t",
    "   x",
    "  x",
    "x   ",
    "x  \n  y",
    " \n \n ",
    "a\302\240b",
    "a\343\200\200b",
    "\342\200\213zero\342\200\213width",
    "\357\273\277bom",
    "0",
    "1",
    "12",
    "123",
    "1234",
    "12345",
    "1234567890",
    "a1234",
    "3.14159",
    "1,000,000",
    "1e-5",
    "0x1F",
    "0b1010",
    "2026-11-30",
    "12:30:59",
    "+1 (555) 010-9999",
    "\331\241\331\242\331\243",
    "\302\275 \302\276",
    "\342\221\240\342\221\241",
    "1st 2nd 3rd",
    "$9.99",
    "50%",
    "v1.2.3-rc4",
    "->",
    "(x):\n",
    "=>",
    "!=",
    "===",
    "!==",
    "&&",
    "||",
    "<<=",
    "::",
    "...",
    "--",
    "---",
    "/* c */",
    "// c",
    "# c",
    "#include <a.h>",
    "<div>",
    "</div>",
    "{\"a\": 1}",
    "[1, 2]",
    "(a, b)",
    "a_b",
    "aB",
    "camelCase",
    "snake_case_name",
    "PascalCase",
    "SCREAMING_CASE",
    "kebab-case-name",
    "def f(x):\n    return x\n",
    "for (int i = 0; i < n; ++i) {\n\t}\n",
    "if x:\n        y\n",
    "SELECT * FROM t WHERE a='b';",
    "x = x**2 + y//3",
    "lambda x: x@y",
    "`code`",
    "```python\nprint('hi')\n```",
    "\\n",
    "a\\nb",
    "\\\\",
    "'single'",
    "\"double\"",
    "C:\\Users\\x",
    "/usr/local/bin",
    "https://example.com/a\?b=c&d=e#f",
    "user@example.com",
    "@name #tag",
    "a;b;c",
    "$PATH ${HOME}",
    "~/.x",
    "x^y",
    "a|b",
    "<a href=\"b\">",
    "caf\303\251",
    "cafe\314\201",
    "na\303\257ve",
    "\303\274ber",
    "stra\303\237e",
    "\304\260stanbul",
    "\303\246ther",
    "\305\223uvre",
    "\357\254\201ne",
    "\302\277Qu\303\251\?",
    "\302\241Hola!",
    "\342\200\234quotes\342\200\235",
    "em\342\200\224dash",
    "ellipsis\342\200\246",
    "\342\202\2545",
    "\302\243\302\245",
    "\344\275\240\345\245\275",
    "\344\275\240\345\245\275\357\274\214\344\270\226\347\225\214\343\200\202",
    "\347\271\201\351\253\224\344\270\255\346\226\207",
    "\343\201\223\343\202\223\343\201\253\343\201\241\343\201\257",
    "\343\202\253\343\202\277\343\202\253\343\203\212",
    "\346\227\245\346\234\254\350\252\236\343\201\250English",
    "\354\225\210\353\205\225\355\225\230\354\204\270\354\232\224",
    "\341\204\222\341\205\241\341\206\253",
    "\320\277\321\200\320\270\320\262\320\265\321\202",
    "\320\237\320\240\320\230\320\222\320\225\320\242",
    "\316\265\316\273\316\273\316\267\316\275\316\271\316\272\316\254",
    "\327\251\327\234\327\225\327\235",
    "\331\205\330\261\330\255\330\250\330\247",
    "\331\205\331\216\330\261\331\222\330\255\331\216\330\250\331\213\330\247",
    "\340\244\271\340\244\277\340\244\250\340\245\215\340\244\246\340\245\200",
    "\340\270\252\340\270\247\340\270\261\340\270\252\340\270\224\340\270\265",
    "ti\341\272\277ng Vi\341\273\207t",
    "\340\260\244\340\261\206\340\260\262\340\261\201\340\260\227\340\261\201",
    "\341\212\240\341\210\233\341\210\255\341\212\233",
    "\360\235\220\200\360\235\220\201",
    "\342\204\253",
    "\357\274\241\357\274\242\357\274\243\357\274\221\357\274\222",
    "\360\237\230\200",
    "\360\237\221\215\360\237\217\275",
    "\360\237\221\250\342\200\215\360\237\221\251\342\200\215\360\237\221\247",
    "\342\235\244\357\270\217",
    "\360\237\207\251\360\237\207\252",
    "\342\206\222 \342\206\220",
    "\342\210\221\342\210\253\342\210\232",
    "\342\226\210\342\226\223\342\226\222",
    "\360\240\200\200",
    "\001\002",
    "\177",
    "\357\277\275",
    "<s>",
    "</s>",
    "<unk>",
    "<pad>",
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|im_start|>user\nhi<|im_end|>\n",
    "<|begin_of_text|>",
    "<|eot_id|>",
    "<|start_header_id|>user<|end_header_id|>\n\n",
    "<bos>",
    "<start_of_turn>user",
    "[INST] hi [/INST]",
    "<|user|>",
    "<|assistant|>",
    "<think>\n\n</think>\n\n",
    "<tool_call>\n{\"name\": \"f\"}\n</tool_call>",
    "<0x0A>",
    "\342\226\201x",
    "\304\240x",
    "<mask>",
    "[CLS]",
    "The quick brown fox jumps over the lazy dog.",
    "Antidisestablishmentarianism",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "zzzzzzzz qqqqqqqq",
    "e.g. i.e. etc.",
    "Mr. O'Neil's",
    "New York, NY 10001",
    "ATP synthase (EC 7.1.2.2)",
    // clang-format on
};
// Tokens named in an error.
constexpr int kNamedTokens = 5;

}  // namespace

std::span<const std::string_view> TokenizerProbes() { return kProbes; }

Result<TokenizerFingerprint> Fingerprint(const Tokenizer& tokenizer) {
  TokenizerFingerprint out;
  std::string text;
  for (const std::string_view probe : kProbes) {
    Result<std::vector<int32_t>> ids = tokenizer.Encode(probe, /*add_special_tokens=*/false);
    if (!ids.ok())
      return ids.status().WithContext("tokenizer probe \"" + std::string(probe) + "\"");
    for (const int32_t id : *ids) {
      text += std::to_string(id) + ",";
      out.highest_id = std::max(out.highest_id, id);
    }
    text += ";";
    out.ids.push_back(*std::move(ids));
  }
  out.sha256 = Sha256Hex(text);
  return out;
}

Result<std::vector<DifferingProbe>> CompareTokenizers(const Tokenizer& a, const Tokenizer& b) {
  HEXPORT_ASSIGN_OR_RETURN(const TokenizerFingerprint of_a, Fingerprint(a));
  HEXPORT_ASSIGN_OR_RETURN(const TokenizerFingerprint of_b, Fingerprint(b));
  std::vector<DifferingProbe> differing;
  for (size_t i = 0; i < kProbes.size(); ++i) {
    if (of_a.ids[i] != of_b.ids[i])
      differing.push_back({i, std::string(kProbes[i]), of_a.ids[i], of_b.ids[i]});
  }
  return differing;
}

Status CheckIdsWithin(const Tokenizer& tokenizer, int64_t embedding_rows) {
  if (tokenizer.vocab_size() <= embedding_rows) return OkStatus();
  std::string names;
  int found = 0;
  for (int64_t id = embedding_rows; id < tokenizer.vocab_size() && found < kNamedTokens; ++id) {
    const Result<std::string> token = tokenizer.IdToToken(static_cast<int32_t>(id));
    if (!token.ok()) continue;
    names += (found == 0 ? "" : ", ") + std::to_string(id) + " \"" + *token + "\"";
    ++found;
  }
  if (found == 0) return OkStatus();
  return FailedPrecondition("tokenizer: expected ids below the embedding's " +
                            std::to_string(embedding_rows) + " rows, got " + names +
                            "; use the tokenizer that belongs to these weights, or resize the "
                            "embedding");
}

std::optional<size_t> FirstDifference(std::span<const int32_t> a, std::span<const int32_t> b) {
  const size_t common = std::min(a.size(), b.size());
  for (size_t i = 0; i < common; ++i) {
    if (a[i] != b[i]) return i;
  }
  if (a.size() == b.size()) return std::nullopt;
  return common;
}

}  // namespace hexport
