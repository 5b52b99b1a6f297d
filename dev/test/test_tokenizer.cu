/* test_tokenizer.cu - text to tokens: pieces, merges, any bytes, long words, and dev/tokenize_text (host code only)
 * The vocabulary is trained here, from sentences below, by the naive algorithm. What the encoder does is compared with a literal reading of the
 * pattern and with quadratic merging. With GPT-2's tokenizer file in the working directory or in data/ (gpt2_tokenizer.bin, llm.c's name) its ids are
 * compared with tiktoken's too. Reading and printing of tokens: test_data.cu.
 */
#define TESTING
#include "dev/tokenize_text.cu"

#include "dev/test/test.h"
#include <map>
#include <vector>

typedef std::vector<std::string> Strings;
typedef std::vector<int> Ids;

static const char sentences[] =
    "The baker's daughter couldn't find the bread; she'd looked everywhere, and they've all gone to the market.\n\n"
    "When the rain came down on the town, the people in the town went down to the river. It's 1000 steps to the river, 2000 to the sea.\n"
    "  for (int i = 0; i < 1000; i++) { river[i] += town[i]; }\n\t\tWe'll see what they're doing when the bread's done.\n"
    "caf\xc3\xa9, na\xc3\xafve, \xe2\x80\x9cthe caf\xc3\xa9\xe2\x80\x9d \xe2\x80\x94 \xe6\x97\xa5\xe6\x9c\xac\xe8\xaa\x9e \xe6\x97\xa5\xe6\x9c\xac "
    "aaaa aaaaaaaa aaaa\n";

// ----------------------------------------------------------------------------
// scratch files

static std::string scratch;
static pid_t scratch_owner;
static void scratch_remove(void) {
    if (getpid() != scratch_owner) { return; }
    if (system(("rm -rf '" + scratch + "'").c_str()) != 0) { fprintf(stderr, "    '%s' is left behind\n", scratch.c_str()); }
}
static std::string at(const std::string& name) {
    if (scratch.empty()) {
        const char* folder = getenv("TMPDIR");
        scratch = std::string(folder && folder[0] ? folder : P_tmpdir) + "/test_tokenizer.XXXXXX";
        CHECK(mkdtemp(&scratch[0]), "cannot make '%s': %s", scratch.c_str(), strerror(errno));
        scratch_owner = getpid();
        atexit(scratch_remove);
    }
    return scratch + "/" + name;
}

static void write_tokenizer(const std::string& path, const Strings& tokens, uint32_t eot) {
    uint32_t header[256] = {TOKENIZER_MAGIC, 2, (uint32_t)tokens.size(), eot};
    std::string bytes((const char*)header, sizeof(header));
    for (const std::string& token : tokens) { bytes += (char)token.size() + token; }
    test_write_file(path, bytes);
}

// An encoder with its tokenizer, for the length of a test.
struct Coder {
    Tokenizer t;
    TokenizerEncoder e;
    Strings tokens;
    std::map<std::string, int> ranks;  // for the naive encoder
    Coder(const Strings& list, uint32_t eot) : tokens(list) {
        for (int i = (int)list.size() - 1; i >= 0; i--) { if (i != (int)eot || list[i].size() == 1) { ranks[list[i]] = i; } }
        write_tokenizer(at("tokenizer.bin"), list, eot);
        CHECK(tokenizer_init(&t, at("tokenizer.bin").c_str()), "tokenizer_init");
        tokenizer_encode_init(&e, &t, at("tokenizer.bin").c_str());
    }
    ~Coder() {
        tokenizer_encode_free(&e);
        tokenizer_free(&t);
    }
    Ids encode(const std::string& text, bool special = false) {
        std::vector<char> copy(text.begin(), text.end());  // of just that size, so that the sanitizer sees a look behind the end
        size_t n = tokenizer_encode(&e, copy.data(), copy.size(), special);
        return Ids(e.ids, e.ids + n);
    }
    std::string decode(const Ids& ids) const {
        std::string text;
        for (int id : ids) { text += tokens[id]; }
        return text;
    }
};

static std::string show(const Ids& ids) {
    std::string s;
    for (int id : ids) { s += std::to_string(id) + " "; }
    return s;
}
static std::string show(const std::string& text) {
    std::string s;
    char hex[8];
    for (unsigned char c : text) {
        snprintf(hex, sizeof(hex), c >= 0x20 && c < 0x7f && c != '\\' ? "%c" : "\\x%02x", c);
        s += hex;
    }
    return s;
}
static std::string show(const Strings& list) {
    std::string s;
    for (const std::string& item : list) { s += "[" + show(item) + "]"; }
    return s;
}

// ----------------------------------------------------------------------------
// the naive encoder, and a vocabulary made by the naive trainer

static Strings pieces_of(const std::string& text) {
    Strings list;
    for (size_t p = 0; p < text.size();) {
        size_t n = tokenizer_piece((const unsigned char*)text.data() + p, text.size() - p);
        CHECK(n > 0 && n <= text.size() - p, "a piece of %zu of %zu bytes", n, text.size() - p);
        list.push_back(text.substr(p, n));
        p += n;
    }
    return list;
}

static Strings single_bytes(int multiplier) {  // multiplier: odd, so that each byte comes once; not 1, so that ids are not the bytes
    Strings list;
    for (int i = 0; i < 256; i++) { list.push_back(std::string(1, (char)(i * multiplier))); }
    return list;
}

// 256 bytes, then merges in the order in which they are the most frequent pair of the sentences, then the end-of-text token.
static Strings trained_tokens(int merges) {
    Strings tokens = single_bytes(167);
    std::vector<Strings> words;
    for (const std::string& piece : pieces_of(sentences)) {
        words.push_back({});
        for (char c : piece) { words.back().push_back(std::string(1, c)); }
    }
    for (int m = 0; m < merges; m++) {
        std::map<std::pair<std::string, std::string>, int> counts;
        for (const Strings& w : words) { for (size_t i = 0; i + 1 < w.size(); i++) { counts[{w[i], w[i + 1]}]++; } }
        CHECK(!counts.empty(), "only %d merges", m);
        auto best = counts.begin();
        for (auto it = counts.begin(); it != counts.end(); ++it) { if (it->second > best->second) { best = it; } }
        const std::pair<std::string, std::string> pair = best->first;
        tokens.push_back(pair.first + pair.second);
        for (Strings& w : words) {
            for (size_t i = 0; i + 1 < w.size(); i++) {
                if (w[i] == pair.first && w[i + 1] == pair.second) {
                    w[i] += w[i + 1];
                    w.erase(w.begin() + (long)i + 1);
                }
            }
        }
    }
    tokens.push_back("<|endoftext|>");
    return tokens;
}

static void naive_merge(Ids* ids, std::map<std::string, int>& ranks, const std::string& piece) {
    if (ranks.count(piece)) { ids->push_back(ranks[piece]); return; }
    Strings parts;
    for (char c : piece) { parts.push_back(std::string(1, c)); }
    for (;;) {
        int lowest = -1;
        size_t place = 0;
        for (size_t i = 0; i + 1 < parts.size(); i++) {
            auto found = ranks.find(parts[i] + parts[i + 1]);
            if (found != ranks.end() && (lowest < 0 || found->second < lowest)) { lowest = found->second; place = i; }
        }
        if (lowest < 0) { break; }
        parts[place] += parts[place + 1];
        parts.erase(parts.begin() + (long)place + 1);
    }
    for (const std::string& part : parts) { ids->push_back(ranks[part]); }
}

// Random text: scraps of the sentences, characters of many scripts, bytes of any value.
static std::string random_text(TestRng* r, size_t bytes) {
    static const char* const others[] = {"\xc2\xa0", "\xe3\x80\x80", "\xf0\x9f\x91\xa9\xe2\x80\x8d", "\xd9\xa3", "\xd0\x9f\xd1\x80", "\xe6\x97\xa5",
                                         "  ", "\n\n", "'s", "'LL", "\r\n", "7"};
    std::string text;
    while (text.size() < bytes) {
        uint64_t x = test_rng_u64(r), kind = x % 8;
        x /= 8;
        if (kind < 4) { text.append(sentences + x % (sizeof(sentences) - 32), 1 + x / 4096 % 30); }
        else if (kind < 6) { text += others[x % (sizeof(others) / sizeof(others[0]))]; }
        else if (kind == 6) { text += (char)x; }
        else { text.append(1 + x / 256 % 20, "a '\n\xe6\xff"[x % 6]); }
    }
    return text;
}

// ----------------------------------------------------------------------------
// pieces

static void test_tokenizer_pieces(void) {
    const struct { const char* text; Strings pieces; } cases[] = {
        {"Hello world", {"Hello", " world"}},
        {"don't we'll I'M it's 're'd", {"don", "'t", " we", "'ll", " I", "'", "M", " it", "'s", " '", "re", "'d"}},
        {"'sister 'lazy 'v 'r'", {"'s", "ister", " '", "lazy", " '", "v", " '", "r", "'"}},
        {"a  b   c", {"a", " ", " b", "  ", " c"}},
        {"a \n b\n\nc\n", {"a", " \n", " b", "\n", "\n", "c", "\n"}},
        {"end   ", {"end", "   "}},
        {" ", {" "}},
        {"\t x\ty", {"\t", " x", "\t", "y"}},
        {"x1y22 333!!! $4", {"x", "1", "y", "22", " 333", "!!!", " $", "4"}},
        {"caf\xc3\xa9 \xe6\x97\xa5\xe6\x9c\xac\xe3\x80\x82", {"caf\xc3\xa9", " \xe6\x97\xa5\xe6\x9c\xac", "\xe3\x80\x82"}},
        // a no-break space is white, but never leads a word
        {"a\xc2\xa0z \xc2\xa0z", {"a", "\xc2\xa0", "z", " ", "\xc2\xa0", "z"}},
        // ideographic space: the last character is given back
        {"\xe3\x80\x80\xe3\x80\x80x", {"\xe3\x80\x80", "\xe3\x80\x80", "x"}},
        // Arabic digits, one half: \p{N}
        {"\xd9\xa3\xd9\xa4 \xc2\xbd", {"\xd9\xa3\xd9\xa4", " \xc2\xbd"}},
        // a combining accent is a mark, not a letter
        {"e\xcc\x81x", {"e", "\xcc\x81", "x"}},
        // Thai: a letter and two marks
        {"\xe0\xb8\x81\xe0\xb8\xb5\xe0\xb9\x88", {"\xe0\xb8\x81", "\xe0\xb8\xb5\xe0\xb9\x88"}},
        {"\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x91\xa7 \xf0\x9f\x91\xa7", {"\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x91\xa7", " \xf0\x9f\x91\xa7"}},
        // U+0085 is white; U+001C and U+200B are not
        {"a\xc2\x85z\x1cz\xe2\x80\x8bz", {"a", "\xc2\x85", "z", "\x1c", "z", "\xe2\x80\x8b", "z"}},
        {"  \x1c\x1cz", {" ", " \x1c\x1c", "z"}},
        // not UTF-8: stray, cut short, overlong, a surrogate, beyond U+10FFFF; all of class OTHER, byte by byte
        {"a\x80\x80z \xff\xc3", {"a", "\x80\x80", "z", " \xff\xc3"}},
        {"\xe6\x97z\xc0\xafz", {"\xe6\x97", "z", "\xc0\xaf", "z"}},
        {"\xed\xa0\x80 \xf4\x90\x80\x80", {"\xed\xa0\x80", " \xf4\x90\x80\x80"}},
        {"\xff's", {"\xff'", "s"}},
        {"\xe6's\xe6\x97", {"\xe6'", "s", "\xe6\x97"}},
    };
    for (const auto& c : cases) {
        Strings got = pieces_of(c.text);
        CHECK(got == c.pieces, "'%s': %s instead of %s", show(std::string(c.text)).c_str(), show(got).c_str(), show(c.pieces).c_str());
    }
    CHECK((pieces_of(std::string("a\0'\0s", 5)) == Strings{"a", std::string("\0'\0", 3), "s"}), "NUL is a symbol like others");
    CHECK((pieces_of(std::string("'\0!", 3)) == Strings{std::string("'\0!", 3)}), "NUL is no contraction");
    const unsigned char* cut_short[] = {(const unsigned char*)"\xe6\x97\xa5", (const unsigned char*)" \xc3\xa9", (const unsigned char*)"'re"};
    for (const unsigned char* text : cut_short) { CHECK(tokenizer_piece(text, 2) == (text[0] == '\'' ? 1 : 2), "'%s' of 2 bytes", text); }
}

// The pattern read literally, on characters whose class is given: alternatives in order, greedy, with going back.
struct Symbol { const char* bytes; char type; };
static size_t literal_match(const std::vector<Symbol>& s, size_t p) {
    auto is = [&](size_t i, const char* bytes) { return i < s.size() && !strcmp(s[i].bytes, bytes); };
    auto run = [&](size_t i, char type) { size_t n = 0; while (i + n < s.size() && s[i + n].type == type) { n++; } return n; };
    if (is(p, "'")) {
        for (const char* one : {"s", "t", "m", "d"}) { if (is(p + 1, one)) { return 2; } }
        for (const char* two : {"re", "ve", "ll"}) { if (is(p + 1, std::string(two, 1).c_str()) && is(p + 2, two + 1)) { return 3; } }
    }
    for (char type : {'L', 'N', 'O'}) {
        if (is(p, " ") && run(p + 1, type)) { return 1 + run(p + 1, type); }
        if (run(p, type)) { return run(p, type); }
    }
    for (size_t k = run(p, 'S'); k > 0; k--) { if (p + k == s.size() || s[p + k].type == 'S') { return k; } }
    return run(p, 'S');
}
static void test_tokenizer_pieces_literal_pattern(void) {
    static const Symbol symbols[] = {{" ", 'S'}, {" ", 'S'}, {"\n", 'S'}, {"\xc2\xa0", 'S'}, {"'", 'O'}, {"'", 'O'}, {"s", 'L'}, {"l", 'L'},
                                     {"r", 'L'}, {"e", 'L'}, {"v", 'L'}, {"S", 'L'}, {"d", 'L'},
                                     {"\xe6\x97\xa5", 'L'}, {"1", 'N'}, {"\xd9\xa3", 'N'}, {"!", 'O'},
                                     {"\xf0\x9f\x91\xa9", 'O'}, {"\xff", 'O'}, {"\xc3", 'O'}};
    TestRng r = {test_seed()};
    for (int round = 0; round < 20000; round++) {
        std::vector<Symbol> text(1 + test_rng_u64(&r) % 12);
        std::string bytes;
        for (Symbol& s : text) { s = symbols[test_rng_u64(&r) % (sizeof(symbols) / sizeof(symbols[0]))]; bytes += s.bytes; }
        Strings expected;
        for (size_t p = 0, n; p < text.size(); p += n) {
            n = literal_match(text, p);
            expected.push_back("");
            for (size_t i = 0; i < n; i++) { expected.back() += text[p + i].bytes; }
        }
        Strings got = pieces_of(bytes);
        CHECK(got == expected, "'%s': %s instead of %s", show(bytes).c_str(), show(got).c_str(), show(expected).c_str());
    }
}

static void test_tokenizer_unicode_classes(void) {
    const struct { uint32_t first, last; enum UnicodeClass type; } ranges[] = {
        {'A', 'Z', UNICODE_LETTER}, {'0', '9', UNICODE_NUMBER}, {9, 13, UNICODE_SPACE}, {0x1c, 0x1f, UNICODE_OTHER},
        {' ', ' ', UNICODE_SPACE}, {0xaa, 0xaa, UNICODE_LETTER}, {0xd7, 0xd7, UNICODE_OTHER}, {0xe0, 0xf6, UNICODE_LETTER},
        {0x300, 0x36f, UNICODE_OTHER}, {0x660, 0x669, UNICODE_NUMBER}, {0x2000, 0x200a, UNICODE_SPACE}, {0x200b, 0x200d, UNICODE_OTHER},
        {0x2160, 0x2182, UNICODE_NUMBER}, {0x3007, 0x3007, UNICODE_NUMBER}, {0x4e00, 0x9fff, UNICODE_LETTER},
        {0xac00, 0xd7a3, UNICODE_LETTER}, {0xd800, 0xdfff, UNICODE_OTHER}, {0x20000, 0x2a6df, UNICODE_LETTER},
        {0x1f600, 0x1f64f, UNICODE_OTHER}, {0x1d7ce, 0x1d7ff, UNICODE_NUMBER}, {0xe0000, 0x10ffff, UNICODE_OTHER}};
    for (const auto& range : ranges) {
        for (uint32_t c = range.first; c <= range.last; c++) {
            CHECK(unicode_class(c) == range.type, "U+%04X is of class %d instead of %d", c, unicode_class(c), range.type);
        }
    }
    for (int i = 1; i < UNICODE_NUM_RUNS; i++) {
        CHECK(unicode_runs[i] >> 2 > unicode_runs[i - 1] >> 2 && (unicode_runs[i] ^ unicode_runs[i - 1]) & 3, "entry %d", i);
    }
    for (unsigned char c = 0; c < 0x80; c++) {  // ASCII has a path of its own
        uint32_t length;
        CHECK(tokenizer_class(&c, 1, &length) == unicode_class(c) && length == 1, "byte %d", c);
    }
}

// ----------------------------------------------------------------------------
// merges

static void test_tokenizer_merges_match_naive(void) {
    Coder coder(trained_tokens(150), 406);
    TestRng r = {test_seed()};
    size_t tokens = 0, bytes = 0;
    for (int round = 0; round < 300; round++) {
        std::string text = round == 0 ? sentences : random_text(&r, 1 + test_rng_u64(&r) % 600);
        Ids expected, got = coder.encode(text);
        for (const std::string& piece : pieces_of(text)) { naive_merge(&expected, coder.ranks, piece); }
        CHECK(got == expected, "'%s': %s instead of %s", show(text).c_str(), show(got).c_str(), show(expected).c_str());
        CHECK(coder.decode(got) == text, "round trip of '%s'", show(text).c_str());
        tokens += got.size();
        bytes += text.size();
    }
    CHECK(tokens < bytes * 3 / 4, "%zu tokens of %zu bytes: nothing was merged", tokens, bytes);
    std::string every;
    for (int i = 0; i < 65536; i++) { every += {(char)(i >> 8), (char)i}; }  // all pairs of bytes
    CHECK(coder.decode(coder.encode(every)) == every, "round trip of all pairs of bytes");
    CHECK(coder.encode("").empty(), "no text, no tokens");
}

static void test_tokenizer_odd_vocabularies(void) {
    // random tokens over two letters: many overlaps, tokens that no merges reach, the same bytes twice
    TestRng r = {test_seed()};
    for (int round = 0; round < 100; round++) {
        Strings tokens = single_bytes(5);
        for (int i = 0; i < 40; i++) {
            std::string token;
            for (uint64_t n = 2 + test_rng_u64(&r) % 5; n > 0; n--) { token += "ab"[test_rng_u64(&r) % 2]; }
            tokens.push_back(token);
        }
        tokens.push_back("ab");  // as end of text: it must not come from "ab"
        Coder coder(tokens, (uint32_t)tokens.size() - 1);
        for (int i = 0; i < 30; i++) {
            std::string text;
            for (uint64_t n = 1 + test_rng_u64(&r) % 60; n > 0; n--) { text += "ab"[test_rng_u64(&r) % 2]; }
            Ids expected, got = coder.encode(text);
            naive_merge(&expected, coder.ranks, text);
            CHECK(got == expected && coder.decode(got) == text, "'%s': %s instead of %s", text.c_str(), show(got).c_str(), show(expected).c_str());
        }
    }
    Strings tokens = single_bytes(1);
    for (const char* token : {"de", "cd", "abc", "bc", "xyz"}) { tokens.push_back(token); }
    Coder coder(tokens, 0);
    Ids got = coder.encode("cdef");
    CHECK((got == Ids{'c', 256, 'f'}), "the lowest id is merged first, not the first pair: %s", show(got).c_str());
    got = coder.encode("abcf");
    CHECK((got == Ids{258, 'f'}), "parts are merged whose bytes together are a token: %s", show(got).c_str());
    got = coder.encode("xyz1xyzf");
    CHECK((got == Ids{260, '1', 'x', 'y', 'z', 'f'}), "a whole piece is its token, part of one only by merges: %s", show(got).c_str());
}

static void test_tokenizer_bytes(void) {
    Coder coder(single_bytes(1), 0);
    TestRng r = {test_seed()};
    std::string text = random_text(&r, 5000) + std::string("\0\0x\0", 4);
    for (bool special : {false, true}) {
        Ids got = coder.encode(text, special);
        CHECK(got.size() == text.size(), "%zu tokens of %zu bytes", got.size(), text.size());
        for (size_t i = 0; i < got.size(); i++) { CHECK(got[i] == (unsigned char)text[i], "token %zu is %d", i, got[i]); }
    }
}

static void test_tokenizer_special(void) {
    Coder coder(trained_tokens(100), 356);
    auto join = [&](std::initializer_list<Ids> parts) {
        Ids all;
        for (const Ids& p : parts) { all.insert(all.end(), p.begin(), p.end()); }
        return all;
    };
    const std::string eot = "<|endoftext|>";
    const Ids e = {356};
    CHECK(coder.encode(eot, true) == e, "alone");
    CHECK(coder.encode(eot + eot, true) == join({e, e}), "twice");
    // around it are texts of their own: the spaces before it are the end of a text
    CHECK(coder.encode("the  " + eot + " the" + eot, true) == join({coder.encode("the  "), e, coder.encode(" the"), e}), "between texts");
    CHECK(coder.encode("<|endoftext|" + eot.substr(0, 5), true) == coder.encode("<|endoftext|" + eot.substr(0, 5)), "parts of it are text");
    Ids plain = coder.encode("a" + eot);
    for (int id : plain) { CHECK(id != 356, "the end-of-text token came from text: %s", show(plain).c_str()); }
    CHECK(coder.decode(plain) == "a" + eot, "as text it comes back");
}

// A longer word must not cost more than n log n: the encoder counts its steps.
static void test_tokenizer_long_words_not_quadratic(void) {
    Strings tokens = single_bytes(3);
    for (int n = 2; n <= 128; n *= 2) { tokens.push_back(std::string(n, 'a')); }
    for (int i = 0; i < 676; i += 3) { tokens.push_back({(char)('a' + i / 26), (char)('a' + i % 26)}); }
    Coder coder(tokens, 0);
    TestRng r = {test_seed()};
    const size_t small = 1 << 13, large = 1 << 18;
    for (int kind = 0; kind < 4; kind++) {
        std::string text;
        for (size_t i = 0; i < large; i++) { text += kind == 1 ? (char)('a' + test_rng_u64(&r) % 26) : "a \xff"[kind - (kind > 1)]; }
        uint64_t before = coder.e.steps;
        coder.encode(text.substr(0, small));
        double few = (double)(coder.e.steps - before);
        before = coder.e.steps;
        Ids got = coder.encode(text);
        double many = (double)(coder.e.steps - before), bound = (double)large / small * log2((double)large) / log2((double)small);
        CHECK(many <= 1.1 * bound * few, "kind %d: %zu bytes take %.0f steps, %zu bytes %.0f: %.1f times, n log n would be %.1f", kind, small, few,
              large, many, many / few, bound);
        CHECK(coder.decode(got) == text, "kind %d: round trip", kind);
    }
    CHECK(coder.encode(std::string(large, 'a')) == Ids(large / 128, 256 + 6), "a power of two of the same letter");
}

// Wherever tokenizer_last_cut says, cutting changes nothing.
static void test_tokenizer_cuts(void) {
    Coder coder(trained_tokens(100), 356);
    TestRng r = {test_seed()};
    int cuts = 0;
    for (int round = 0; round < 3000; round++) {
        std::string text = random_text(&r, 60);
        size_t window = 1 + test_rng_u64(&r) % text.size(), cut = tokenizer_last_cut((const unsigned char*)text.data(), window);
        CHECK(cut < window, "cut %zu of %zu", cut, window);
        if (cut == 0) { continue; }
        cuts++;
        Ids got = coder.encode(text.substr(0, cut)), rest = coder.encode(text.substr(cut));
        got.insert(got.end(), rest.begin(), rest.end());
        CHECK(got == coder.encode(text), "'%s' cut at %zu", show(text).c_str(), cut);
    }
    CHECK(cuts > 1000, "only %d cuts", cuts);
    const struct { const char* text; size_t cut; } cases[] = {
        {"abc", 0}, {"a b c", 3}, {" a", 0}, {"a  ", 1}, {"a\n\n", 1}, {"\xe6\x97\xa5 x", 3}, {"\xe3\x80\x80 x", 0}, {"\xc2\xa0\na", 0},
        {"\x80\x80\x80\x80 ", 4}, {"\xe3\x80\x80\x80 ", 4}};
    for (const auto& c : cases) {
        size_t cut = tokenizer_last_cut((const unsigned char*)c.text, strlen(c.text));
        CHECK(cut == c.cut, "'%s': cut at %zu instead of %zu", show(std::string(c.text)).c_str(), cut, c.cut);
    }
}

static void child_init(void* path) {
    Tokenizer t;
    TokenizerEncoder e;
    tokenizer_init(&t, (const char*)path);
    tokenizer_encode_init(&e, &t, (const char*)path);
}
static void test_tokenizer_refusals(void) {
    Strings tokens = single_bytes(1);
    tokens[0x41] = "AA";
    write_tokenizer(at("lacks.bin"), tokens, 0);
    const struct { std::string path, words[3]; } cases[] = {
        {at("lacks.bin"), {"lacks.bin", "0x41", "HINT"}}, {at("missing.bin"), {"missing.bin", "no tokenizer", "data/README.md"}}};
    for (const auto& c : cases) {
        std::string output;
        int code = test_child(child_init, (void*)c.path.c_str(), &output);
        for (const std::string& word : c.words) {
            CHECK(code == 1 && output.find(word) != std::string::npos, "exit code %d, '%s' wanted in: %s", code, word.c_str(), output.c_str());
        }
    }
}

// ids by tiktoken 0.14 with GPT-2's ranks; end of text allowed
static void test_tokenizer_gpt2_golden(void) {
    const char* path = access("gpt2_tokenizer.bin", F_OK) == 0 ? "gpt2_tokenizer.bin" : "data/gpt2_tokenizer.bin";  // where the scripts in data/ write it
    Tokenizer t;
    if (!tokenizer_init(&t, path)) { SKIP("no gpt2_tokenizer.bin here or in data/"); }
    const struct { const char* text; Ids ids; } cases[] = {
        {"hello world", {31373, 995}},
        {"The quick brown fox doesn't jump; it's 1234567 km away.",
         {464, 2068, 7586, 21831, 1595, 470, 4391, 26, 340, 338, 17031, 2231, 3134, 10571, 1497, 13}},
        {"  two  spaces\n\n\tand a tab \n", {220, 734, 220, 9029, 628, 197, 392, 257, 7400, 220, 198}},
        {"for (int i = 0; i < n; i++) { x[i] += 1; }",
         {1640, 357, 600, 1312, 796, 657, 26, 1312, 1279, 299, 26, 1312, 29577, 1391, 2124, 58, 72, 60, 15853, 352, 26, 1782}},
        {"I'LL we'll I'M i'm", {40, 6, 3069, 356, 1183, 314, 6, 44, 1312, 1101}},
        {"na\xc3\xafve caf\xc3\xa9 \xe2\x80\x94 \xe2\x80\x9cquoted\xe2\x80\x9d", {2616, 38776, 40304, 851, 564, 250, 421, 5191, 447, 251}},
        {"\xe6\x97\xa5\xe6\x9c\xac\xe8\xaa\x9e\xe3\x81\xae\xe6\x96\x87\xe7\xab\xa0\xe3\x80\x82",
         {33768, 98, 17312, 105, 45739, 252, 5641, 23877, 229, 44165, 254, 16764}},
        {"\xd0\x9f\xd1\x80\xd0\xb8\xd0\xb2\xd0\xb5\xd1\x82, \xd0\xbc\xd0\xb8\xd1\x80",
         {140, 253, 21169, 18849, 38857, 16843, 20375, 11, 12466, 120, 18849, 21169}},
        {"\xf0\x9f\x91\xa8\xe2\x80\x8d\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x91\xa7 ok",
         {41840, 101, 447, 235, 41840, 102, 447, 235, 41840, 100, 12876}},
        {"\xd9\xa3\xd9\xa4 \xc2\xbd\xc2\xa0x\xe3\x80\x80y", {149, 96, 149, 97, 25208, 1849, 87, 5099, 222, 88}},
        {"a<|endoftext|>b", {64, 50256, 65}},
    };
    TokenizerEncoder e;
    tokenizer_encode_init(&e, &t, path);
    for (const auto& c : cases) {
        size_t n = tokenizer_encode(&e, c.text, strlen(c.text), true);
        Ids got(e.ids, e.ids + n);
        CHECK(got == c.ids, "'%s': %s instead of %s", show(std::string(c.text)).c_str(), show(got).c_str(), show(c.ids).c_str());
    }
    tokenizer_encode_free(&e);
    tokenizer_free(&t);
}

// ----------------------------------------------------------------------------
// dev/tokenize_text

struct Call { Strings arguments; size_t window; };
static void child_tokenize(void* call) {
    const Call* c = (const Call*)call;
    std::vector<char*> argv = {(char*)"tokenize_text"};
    for (const std::string& a : c->arguments) { argv.push_back((char*)a.c_str()); }
    exit(tokenize_main((int)argv.size(), argv.data(), c->window));
}
static int tokenize(const Strings& arguments, size_t window, std::string* output) {
    Call call = {arguments, window};
    return test_child(child_tokenize, &call, output);
}

static void test_tokenize_text_shard(void) {
    Coder coder(trained_tokens(100), 356);
    TestRng r = {test_seed()};
    const struct { const char *name; std::string separator; bool keep; } modes[] = {
        {"none", "", false}, {"blank-line", "\n\n", true}, {"nul", std::string(1, 0), false}, {"endoftext", "<|endoftext|>", false}};
    for (const auto& mode : modes) {
        for (int last = 0; last < 2; last++) {  // 0: text behind the last separator, 1: none
            std::string text, output;
            for (int i = 0; i < 40; i++) {
                text += random_text(&r, i % 5 == 4 ? 0 : test_rng_u64(&r) % 200);  // a few empty documents
                text += i < 39 ? modes[test_rng_u64(&r) % 4].separator + mode.separator : last ? mode.separator : "end";
            }
            test_write_file(at("text"), text);
            Ids expected;
            for (size_t p = 0; p < text.size();) {
                size_t end = mode.separator.empty() ? std::string::npos : text.find(mode.separator, p), next = text.size();
                if (end == std::string::npos) { end = next; } else { next = end + mode.separator.size(); }
                expected.push_back(356);
                for (int id : coder.encode(text.substr(p, (mode.keep ? next : end) - p))) { expected.push_back(id); }
                p = next;
            }
            for (size_t window : {1, 16, 100, 1 << 20}) {
                int code = tokenize({at("text"), at("tokenizer.bin"), at("out.bin"), mode.name}, window, &output);
                CHECK(code == 0, "exit code %d: %s", code, output.c_str());
                std::string shard = test_read_file(at("out.bin"));
                CHECK(shard.size() == SHARD_HEADER_BYTES + 2 * expected.size(), "%s, window %zu: %zu bytes, %zu tokens due", mode.name, window,
                      shard.size(), expected.size());
                int32_t header[256];
                memcpy(header, shard.data(), sizeof(header));
                bool right = header[0] == 20240520 && header[1] == 1 && header[2] == (int)expected.size();
                CHECK(right, "header %d %d %d", header[0], header[1], header[2]);
                for (size_t i = 0; i < expected.size(); i++) {
                    uint16_t token;
                    memcpy(&token, shard.data() + SHARD_HEADER_BYTES + 2 * i, 2);
                    CHECK(token == expected[i], "%s, window %zu: token %zu is %d instead of %d", mode.name, window, i, token, expected[i]);
                }
            }
            std::string said = std::to_string(expected.size()) + " tokens of " + std::to_string(text.size()) + " bytes";
            CHECK(output.find(said) != std::string::npos, "'%s' wanted in: %s", said.c_str(), output.c_str());
        }
    }
}

static void test_tokenize_text_refusals(void) {
    write_tokenizer(at("tokenizer.bin"), single_bytes(1), 0);
    test_write_file(at("text"), "text");
    test_write_file(at("empty"), "");
    test_write_file(at("out.bin"), "as it was");
    const std::string tokenizer = at("tokenizer.bin"), out = at("out.bin");
    const struct { Strings arguments; int code; const char* word; } cases[] = {
        {{at("text"), tokenizer}, 2, "not 2"},
        {{at("text"), tokenizer, out, "none", "more"}, 2, "not 5"},
        {{at("text"), tokenizer, out, "paragraph"}, 2, "'paragraph'"},
        {{at("missing"), tokenizer, out}, 1, "missing"},
        {{at(""), tokenizer, out}, 1, "directory"},
        {{at("empty"), tokenizer, out}, 1, "empty"},
        {{at("text"), at("missing"), out}, 1, "no tokenizer"},
        {{at("text"), at("text"), out}, 1, "cut short"},
        {{at("text"), tokenizer, at("no/out.bin")}, 1, "no/out.bin"},
    };
    for (const auto& c : cases) {
        std::string output;
        int code = tokenize(c.arguments, 64, &output);
        bool told = output.find("ERROR") != std::string::npos && output.find(c.word) != std::string::npos;
        CHECK(code == c.code && told, "exit code %d instead of %d, '%s' wanted in: %s", code, c.code, c.word, output.c_str());
        CHECK(test_read_file(out) == "as it was" && test_read_file(out + ".tmp") == "(missing)", "%s: the old file or a temporary one", c.word);
    }
}

int main(int argc, char** argv) {
    static const Test tests[] = {
        {"tokenizer_pieces", test_tokenizer_pieces, QUICK},
        {"tokenizer_pieces_literal_pattern", test_tokenizer_pieces_literal_pattern, QUICK},
        {"tokenizer_unicode_classes", test_tokenizer_unicode_classes, QUICK},
        {"tokenizer_merges_match_naive", test_tokenizer_merges_match_naive, QUICK},
        {"tokenizer_odd_vocabularies", test_tokenizer_odd_vocabularies, QUICK},
        {"tokenizer_bytes", test_tokenizer_bytes, QUICK},
        {"tokenizer_special", test_tokenizer_special, QUICK},
        {"tokenizer_long_words_not_quadratic", test_tokenizer_long_words_not_quadratic, QUICK},
        {"tokenizer_cuts", test_tokenizer_cuts, QUICK},
        {"tokenizer_refusals", test_tokenizer_refusals, QUICK},
        {"tokenizer_gpt2_golden", test_tokenizer_gpt2_golden, QUICK},
        {"tokenize_text_shard", test_tokenize_text_shard, QUICK},
        {"tokenize_text_refusals", test_tokenize_text_refusals, QUICK},
    };
    return TEST_MAIN(tests);
}
