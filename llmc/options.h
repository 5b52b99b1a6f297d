/* options.h - the command line, made from the rows of llmc/option_table.h
 *
 * What:      OPTION_TABLE expands to struct Options, defaults, parser, ranges, --help, the printed configuration and the README's table, so that
 *            these cannot disagree. Include llmc/option_table.h, which includes this file.
 * Accepted:  --name value, --name=value, --flag, --no-flag, and llm.c's letters as "-b 4" (a flag's letter takes 0 or 1). Names match exactly.
 *            --preset NAME (PRESET_TABLE) sets what else was not given.
 *            A value that starts with - is taken only for numbers, or after =, so that a forgotten value is noticed.
 * Actions:   --help or a bare -h, --help-markdown, --print-config (after all else is parsed and checked): print, exit 0.
 * Errors:    unknown name (with the nearest one), missing or malformed value, out of range, given twice: message, HINT, exit 2. Only letters may be
 *            repeated, as in llm.c's scripts: a warning, the last wins.
 * Memory:    string values point into argv or to literals; nothing is freed. No mutable statics.
 * Tests:     dev/test/test_options.cu */
#ifndef LLMC_OPTIONS_H
#define LLMC_OPTIONS_H

#ifndef OPTION_TABLE
#error "include llmc/option_table.h: it holds the rows and includes llmc/options.h"
#endif

#include <ctype.h>
#include <stddef.h>
#include <string>
#include <vector>

#include "llmc/common.h"

// ----------------------------------------------------------------------------
// the struct and the rows as data

#define OPTION_C_INT int
#define OPTION_C_INT64 int64_t
#define OPTION_C_FLOAT float
#define OPTION_C_BOOL bool
#define OPTION_C_STRING const char*
#define OPTION_C_ENUM int

typedef enum { OPTION_INT, OPTION_INT64, OPTION_FLOAT, OPTION_BOOL, OPTION_STRING, OPTION_ENUM } OptionType;

#define OPTION_INDEX(field, letters, type, def, min, max, group, help) OPTION_INDEX_##field,
enum { OPTION_TABLE(OPTION_INDEX) OPTION_COUNT };
#undef OPTION_INDEX

#define OPTION_BY_PRESET "--preset sets it"
#define OPTION_MEMBER(field, letters, type, def, min, max, group, help) OPTION_C_##type field;
typedef struct {
    OPTION_TABLE(OPTION_MEMBER)
    const char* given[OPTION_COUNT];    // how the option was written on the command line ("--batch-size", "-b"), OPTION_BY_PRESET, NULL if neither
} Options;
#undef OPTION_MEMBER

typedef struct {
    const char* name;       // as in the struct: with underscores
    const char* letters;    // llm.c's, without the dash
    OptionType type;
    size_t offset;          // in Options
    double min, max;
    const char* choices;    // ENUM: "name|synonym,name,"
    const char *group, *help;
} OptionSpec;

// min is a number for most types and a list of choices for ENUM
static inline double option_min(int x) { return x; }
static inline double option_min(double x) { return x; }
static inline double option_min(const char*) { return 0; }
static inline const char* option_choices(int) { return ""; }
static inline const char* option_choices(double) { return ""; }
static inline const char* option_choices(const char* x) { return x; }

// The rows, OPTION_COUNT of them.
static inline const OptionSpec* option_specs(void) {
#define OPTION_SPEC(field, letters, type, def, min, max, group, help) \
    {#field, letters, OPTION_##type, offsetof(Options, field), option_min(min), (double)(max), option_choices(min), group, help},
    static const OptionSpec specs[OPTION_COUNT] = {OPTION_TABLE(OPTION_SPEC)};
#undef OPTION_SPEC
    return specs;
}

static inline void options_init(Options* o) {
    memset(o, 0, sizeof(*o));
#define OPTION_DEFAULT(field, letters, type, def, min, max, group, help) o->field = (OPTION_C_##type)(def);
    OPTION_TABLE(OPTION_DEFAULT)
#undef OPTION_DEFAULT
}

typedef struct {
    const char* name;
    const char* sets;        // "field=value\0field=value\0": an empty one ends it
    const char *purpose, *tradeoff;
} OptionPreset;
#define OPTION_PRESET(name, sets, purpose, tradeoff) {name, sets, purpose, tradeoff},
static const OptionPreset option_presets[] = {PRESET_TABLE(OPTION_PRESET)};
#undef OPTION_PRESET

// ----------------------------------------------------------------------------
// values as text

// Field of *o for a row.
static inline void* option_value(const Options* o, const OptionSpec* s) { return (char*)(uintptr_t)o + s->offset; }

// The main name of choice number index, "" past the end.
static inline std::string option_choice_name(const OptionSpec* s, int index) {
    const char* p = s->choices;
    for (int i = 0; i < index && *p; i++) { p = strchr(p, ',') + 1; }
    return std::string(p, strcspn(p, "|,"));
}

// The choice that has this name or synonym, -1 if none.
static inline int option_choice_find(const OptionSpec* s, const char* text) {
    int index = 0;
    for (const char* p = s->choices; *p;) {
        size_t length = strcspn(p, "|,");
        if (strlen(text) == length && !strncmp(p, text, length)) { return index; }
        p += length;
        if (*p == ',') { index++; }
        p++;
    }
    return -1;
}

// The shortest decimal that reads back as the same float.
static inline std::string option_float_text(float x) {
    char text[32];
    if (x > -1e7f && x < 1e7f && x == (float)(int)x) { return std::to_string((int)x); }  // 100, not 1e+02
    for (int digits = 1; digits <= 9; digits++) {
        snprintf(text, sizeof(text), "%.*g", digits, (double)x);
        if ((float)strtod(text, NULL) == x) { break; }
    }
    return text;
}

static inline std::string option_text(const Options* o, const OptionSpec* s) {
    const void* value = option_value(o, s);
    switch (s->type) {
        case OPTION_INT: return std::to_string(*(const int*)value);
        case OPTION_INT64: return std::to_string(*(const int64_t*)value);
        case OPTION_FLOAT: return option_float_text(*(const float*)value);
        case OPTION_BOOL: return *(const bool*)value ? "1" : "0";
        case OPTION_STRING: return *(const char* const*)value;
        case OPTION_ENUM: return option_choice_name(s, *(const int*)value);
    }
    return "";
}

// --name of a row
static inline std::string option_long_name(const OptionSpec* s) {
    std::string name = std::string("--") + s->name;
    for (char& c : name) { if (c == '_') { c = '-'; } }
    return name;
}

// "1 to 65536", "auto, float8 (fp8), ..."
static inline std::string option_range_text(const OptionSpec* s) {
    std::string text;
    char range[80];
    switch (s->type) {
        case OPTION_INT:
        case OPTION_INT64: snprintf(range, sizeof(range), "%lld to %lld", (long long)s->min, (long long)s->max); return range;
        case OPTION_FLOAT: return option_float_text((float)s->min) + " to " + option_float_text((float)s->max);
        case OPTION_BOOL: return "0 or 1";
        case OPTION_STRING: snprintf(range, sizeof(range), "%lld to %lld bytes long", (long long)s->min, (long long)s->max); return range;
        case OPTION_ENUM: break;
    }
    bool synonym = false;
    for (const char* p = s->choices; *p;) {
        size_t length = strcspn(p, "|,");
        text += std::string(p, length);
        p += length;
        if (*p == '|') {
            text += synonym ? ", " : " (";
            synonym = true;
        } else {
            if (synonym) { text += ")"; }
            synonym = false;
            if (p[1]) { text += ", "; }
        }
        p++;
    }
    return text;
}

// ----------------------------------------------------------------------------
// finding rows

// Is name (any mix of - and _, len bytes) the name of this row?
static inline bool option_name_equal(const OptionSpec* s, const char* name, size_t len) {
    if (strlen(s->name) != len) { return false; }
    for (size_t i = 0; i < len; i++) { if ((name[i] == '-' ? '_' : name[i]) != s->name[i]) { return false; } }
    return true;
}

static inline const OptionSpec* option_find(const char* name, size_t len) {
    const OptionSpec* specs = option_specs();
    for (int i = 0; i < OPTION_COUNT; i++) { if (option_name_equal(&specs[i], name, len)) { return &specs[i]; } }
    return NULL;
}

// letters: "pi|pm" are two spellings of one switch; the first is the one that is shown.
static inline const OptionSpec* option_find_letters(const char* letters) {
    const OptionSpec* specs = option_specs();
    for (int i = 0; i < OPTION_COUNT; i++) {
        for (const char* p = specs[i].letters; *p;) {
            size_t length = strcspn(p, "|");
            if (strlen(letters) == length && !strncmp(p, letters, length)) { return &specs[i]; }
            p += length + (p[length] == '|');
        }
    }
    return NULL;
}
static inline std::string option_letters(const OptionSpec* s) { return std::string(s->letters, strcspn(s->letters, "|")); }

// llm.c looks at the first letter of most switches only: -ix is -i there. Its exceptions, whose second letter counts, are l, n, s and p.
static inline const OptionSpec* option_find_llmc_alias(const char* letters) {
    const char first[2] = {letters[0], 0};
    return strlen(letters) == 2 && !strchr("lnsp", letters[0]) ? option_find_letters(first) : NULL;
}

// Was the option (name with - or _) given on the command line?
static inline bool options_is_set(const Options* o, const char* name) {
    const OptionSpec* s = option_find(name, strlen(name));
    require(s, "", "options_is_set: there is no option '%s'", name);
    return o->given[s - option_specs()] != NULL;
}

// Edits (insert, delete, replace, swap of neighbours) that turn a into b.
static inline int option_edit_distance(const std::string& a, const std::string& b) {
    std::vector<std::vector<int>> d(a.size() + 1, std::vector<int>(b.size() + 1));
    for (size_t i = 0; i <= a.size(); i++) {
        for (size_t j = 0; j <= b.size(); j++) {
            if (i == 0 || j == 0) { d[i][j] = (int)(i + j); continue; }
            int best = d[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
            if (d[i - 1][j] + 1 < best) { best = d[i - 1][j] + 1; }
            if (d[i][j - 1] + 1 < best) { best = d[i][j - 1] + 1; }
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && d[i - 2][j - 2] + 1 < best) { best = d[i - 2][j - 2] + 1; }
            d[i][j] = best;
        }
    }
    return d[a.size()][b.size()];
}

// What the user may have meant by arg (the whole argument, dashes included); "" if nothing comes near.
static inline std::string option_nearest(const char* arg) {
    std::string word = arg + strspn(arg, "-");
    word = word.substr(0, word.find('='));
    for (char& c : word) { c = c == '_' ? '-' : (char)tolower((unsigned char)c); }
    if (word.compare(0, 3, "no-") == 0) { word = word.substr(3); }
    std::vector<std::string> names = {"--help", "--help-markdown", "--print-config"};
    for (int i = 0; i < OPTION_COUNT; i++) { names.push_back(option_long_name(&option_specs()[i])); }
    std::string nearest;
    int nearest_cost = (int)word.size() / 3 + 2;  // more edits than this is another word
    if ((int)word.size() < nearest_cost) { nearest_cost = (int)word.size(); }
    for (const std::string& name : names) {
        std::string bare = name.substr(2);
        int cost = option_edit_distance(word, bare);
        size_t at = word.size() >= 3 ? bare.find(word) : std::string::npos;
        if (at != std::string::npos && cost > 1) { cost = at == 0 ? 0 : 1; }  // "batch" begins "batch-size", "steps" is in "max-steps"
        if (cost < nearest_cost) {
            nearest_cost = cost;
            nearest = name;
        }
    }
    return nearest;
}

// ----------------------------------------------------------------------------
// printing

// text in lines of at most width bytes, all but the first indented; ends with a newline
static inline void option_print_wrapped(FILE* out, const std::string& text, int indent, int width) {
    size_t from = 0;
    while (true) {
        size_t to = text.size();
        if ((int)(to - from) > width) {
            to = text.rfind(' ', from + width);
            if (to == std::string::npos || to <= from) { to = text.find(' ', from); }
            if (to == std::string::npos) { to = text.size(); }
        }
        fprintf(out, "%s\n", text.substr(from, to - from).c_str());
        from = to + 1;
        if (from >= text.size()) { break; }
        fprintf(out, "%*s", indent, "");
    }
}

// What a preset sets, as it would stand on a command line, each behind `before` and followed by `after`.
static inline std::string option_preset_text(const OptionPreset* preset, const char* before, const char* after) {
    std::string text;
    for (const char* set = preset->sets; *set; set += strlen(set) + 1) {
        const size_t length = strcspn(set, "=");
        const OptionSpec* s = option_find(set, length);
        text += (text.empty() ? "" : " ") + std::string(before) + (s ? option_long_name(s) : std::string(set, length)) + " " + (set + length + 1) + after;
    }
    return text;
}

static inline void options_print_help(FILE* out, const char* program) {
    const OptionSpec* specs = option_specs();
    Options defaults;
    options_init(&defaults);
    static const char* const value_word[] = {"N", "N", "X", "", "TEXT", "NAME"};
    std::vector<std::string> left;
    int width = 0;
    for (int i = 0; i < OPTION_COUNT; i++) {
        const OptionSpec* s = &specs[i];
        std::string text = std::string("  ") + option_long_name(s);
        if (s->type != OPTION_BOOL) { text += std::string(" ") + value_word[s->type]; }
        if (s->letters[0]) { text += ", -" + option_letters(s); }
        if ((int)text.size() > width) { width = (int)text.size(); }
        left.push_back(text);
    }
    width += 2;
    fprintf(out, "usage: %s [options]\n", program);
    fprintf(out, "Write --name value or --name=value; switch flags on with --name, off with --no-name. The short names are llm.c's (flags: -y 1).\n");
    for (int i = 0; i < OPTION_COUNT; i++) {
        const OptionSpec* s = &specs[i];
        if (i == 0 || strcmp(specs[i - 1].group, s->group)) { fprintf(out, "\n%s\n", s->group); }
        std::string text = s->help;
        if (s->type == OPTION_ENUM) { text += "; one of " + option_range_text(s); }
        std::string def = s->type == OPTION_BOOL ? (option_text(&defaults, s) == "1" ? "on" : "off") : option_text(&defaults, s);
        text += " [" + (def.empty() ? std::string("empty") : def) + "]";
        fprintf(out, "%-*s", width, left[i].c_str());
        option_print_wrapped(out, text, width, 140 - width);
    }
    fprintf(out, "\npresets: --preset NAME sets what the command line does not\n");
    for (const OptionPreset& preset : option_presets) {
        const std::string sets = option_preset_text(&preset, "", "");
        fprintf(out, "  %-*s", width - 2, preset.name);
        option_print_wrapped(out, std::string(preset.purpose) + "; " + preset.tradeoff + (sets.empty() ? "" : " [" + sets + "]"), width, 140 - width);
    }
    fprintf(out, "\n%-*sthis text\n", width, "  --help, -h");
    fprintf(out, "%-*sboth lists in Markdown\n", width, "  --help-markdown");
    fprintf(out, "%-*sprint every option as name=value, then end\n", width, "  --print-config");
}

// The README's tables: presets, options.
static inline void options_print_markdown(FILE* out) {
    const OptionSpec* specs = option_specs();
    Options defaults;
    options_init(&defaults);
    static const char* const type_name[] = {"integer", "integer", "number", "flag", "text", "one of"};
    fprintf(out, "| preset | for | trade-off | sets |\n| --- | --- | --- | --- |\n");
    for (const OptionPreset& preset : option_presets) {
        fprintf(out, "| `%s` | %s | %s | %s |\n", preset.name, preset.purpose, preset.tradeoff, option_preset_text(&preset, "`", "`").c_str());
    }
    fprintf(out, "\n| option | llm.c | values | default | meaning |\n| --- | --- | --- | --- | --- |\n");
    for (int i = 0; i < OPTION_COUNT; i++) {
        const OptionSpec* s = &specs[i];
        std::string letters = s->letters[0] ? "`-" + option_letters(s) + "`" : "";
        std::string values = type_name[s->type];
        if (s->type != OPTION_BOOL && s->type != OPTION_STRING) { values += std::string(s->type == OPTION_ENUM ? " " : ", ") + option_range_text(s); }
        std::string def = option_text(&defaults, s);
        if (s->type == OPTION_BOOL) { def = def == "1" ? "on" : "off"; }
        fprintf(out, "| `%s` | %s | %s | %s | %s |\n", option_long_name(s).c_str(), letters.c_str(), values.c_str(),
                def.empty() ? "" : ("`" + def + "`").c_str(), s->help);
    }
}

// One row of the printed configuration: llm.c's parameter table. A longer name or value pushes the bar to the right.
__attribute__((format(printf, 3, 4)))
static inline void options_print_row(FILE* out, const char* name, const char* fmt, ...) {
    char value[4200];
    va_list args;
    va_start(args, fmt);
    vsnprintf(value, sizeof(value), fmt, args);
    va_end(args);
    fprintf(out, "| %-21s | %-50s |\n", name, value);
}
static inline void options_print_rule(FILE* out) {
    fprintf(out, "+-----------------------+----------------------------------------------------+\n");
}

// llm.c's first block: its rows, names and formats (LLMC_ROWS of option_table.h); then what only this program has, a * marks what was given on the
// command line, (preset) what --preset set. Main goes on with options_print_row for what it derives.
static inline void options_print_llmc(const Options* o, FILE* out, long long total_batch_tokens) {
    options_print_rule(out);
    options_print_row(out, "Parameter", "Value");
    options_print_rule(out);
#define LLMC_ROW(field, name, fmt, value) options_print_row(out, name, fmt, value);
    LLMC_ROWS(LLMC_ROW)
#undef LLMC_ROW
    options_print_rule(out);
}
static inline void options_print_rest(const Options* o, FILE* out) {
    static const char* const printed[] = {
#define LLMC_ROW(field, name, fmt, value) #field,
        LLMC_ROWS(LLMC_ROW)
#undef LLMC_ROW
    };
    const OptionSpec* specs = option_specs();
    for (int i = 0; i < OPTION_COUNT; i++) {
        const OptionSpec* s = &specs[i];
        bool already = false;
        for (const char* field : printed) { already = already || !strcmp(field, s->name); }
        if (already) { continue; }
        std::string value = option_text(o, s);
        if (s->type == OPTION_BOOL) { value = value == "1" ? "on" : "off"; }
        if (value.empty()) { value = "(empty)"; }
        options_print_row(out, option_long_name(s).c_str() + 2, "%s%s", value.c_str(), !o->given[i] ? "" : strcmp(o->given[i], OPTION_BY_PRESET) ? " *" : " (preset)");
    }
    options_print_rule(out);
}

// name=value lines in the order of the table: what --print-config prints and a checkpoint records. Values hold no newline (the parser refuses it).
static inline std::string options_to_text(const Options* o) {
    std::string text;
    for (int i = 0; i < OPTION_COUNT; i++) { text += std::string(option_specs()[i].name) + "=" + option_text(o, &option_specs()[i]) + "\n"; }
    return text;
}

typedef struct {
    std::string name, before, after;
    bool in_before, in_after;   // an option that one version of the program does not know is missing on its side
} OptionDiff;

// How two texts of options_to_text differ, in the order of before and then of what only after has.
static inline std::vector<OptionDiff> options_diff(const std::string& before, const std::string& after) {
    std::vector<OptionDiff> rows, result;
    for (int side = 0; side < 2; side++) {
        const std::string& text = side == 0 ? before : after;
        for (size_t from = 0; from < text.size();) {
            size_t end = text.find('\n', from);
            if (end == std::string::npos) { end = text.size(); }
            std::string line = text.substr(from, end - from);
            from = end + 1;
            size_t equals = line.find('=');
            if (equals == std::string::npos) { continue; }
            std::string name = line.substr(0, equals), value = line.substr(equals + 1);
            OptionDiff* row = NULL;
            for (OptionDiff& r : rows) { if (r.name == name) { row = &r; } }
            if (!row) {
                rows.push_back({name, "", "", false, false});
                row = &rows.back();
            }
            (side == 0 ? row->before : row->after) = value;
            (side == 0 ? row->in_before : row->in_after) = true;
        }
    }
    for (const OptionDiff& r : rows) { if (r.in_before != r.in_after || r.before != r.after) { result.push_back(r); } }
    return result;
}

// ----------------------------------------------------------------------------
// parsing

__attribute__((noreturn))
static inline void option_fail_range(const OptionSpec* s, const char* as, const char* text) {
    std::string hint = option_long_name(s) + " is " + (s->type == OPTION_ENUM ? "one of " : "") + option_range_text(s) + ": " + s->help;
    const char* what = s->type == OPTION_ENUM ? "is not one of the choices" : s->type == OPTION_BOOL ? "is not 0 or 1" : "is out of range";
    if (s->type == OPTION_STRING) {
        fail_usage(hint.c_str(), "%s: a text of %zu bytes is %s", as, strlen(text), text[0] ? "too long or too short" : "empty");
    }
    fail_usage(hint.c_str(), "%s %s: the value %s (%s)", as, text, what, option_range_text(s).c_str());
}

// Stores text as the value of a row. as: how the user wrote the option.
static inline void option_store(Options* o, const OptionSpec* s, const char* as, const char* text) {
    void* value = option_value(o, s);
    char* end = NULL;
    bool blank = text[0] == '\0' || isspace((unsigned char)text[0]);  // strtol and strtod skip blanks; we do not
    switch (s->type) {
        case OPTION_INT:
        case OPTION_INT64:
        case OPTION_BOOL: {
            long long x = strtoll(text, &end, 10);
            if (blank || *end || end == text) {
                fail_usage("write it in full in decimal digits, as 1000000 for a million", "%s: '%s' is not a whole number", as, text);
            }
            if (x < (long long)s->min || x > (long long)s->max) { option_fail_range(s, as, text); }
            if (s->type == OPTION_INT) { *(int*)value = (int)x; }
            else if (s->type == OPTION_INT64) { *(int64_t*)value = x; }
            else { *(bool*)value = x != 0; }
            return;
        }
        case OPTION_FLOAT: {
            double x = strtod(text, &end);
            if (blank || *end || end == text) { fail_usage("write a number such as 0.001 or 1e-3", "%s: '%s' is not a number", as, text); }
            float f = (float)x;
            if (!(f >= (float)s->min && f <= (float)s->max)) { option_fail_range(s, as, text); }  // refuses NaN too
            *(float*)value = f == 0.0f ? 0.0f : f;  // no -0
            return;
        }
        case OPTION_STRING: {
            size_t length = strlen(text);
            if (length < (size_t)s->min || length > (size_t)s->max) { option_fail_range(s, as, text); }
            for (const char* p = text; *p; p++) {
                unsigned char c = (unsigned char)*p;
                if (iscntrl(c)) { fail_usage("remove it", "%s: the value holds a control character (byte %d)", as, c); }
            }
            *(const char**)value = text;
            return;
        }
        case OPTION_ENUM: {
            int index = option_choice_find(s, text);
            if (index < 0) { option_fail_range(s, as, text); }
            *(int*)value = index;
            return;
        }
    }
}

// Notes that an option was given; a second time is an error, or for two letters a warning.
static inline void option_note_given(Options* o, const OptionSpec* s, const char* as) {
    const char** given = &o->given[s - option_specs()];
    if (*given) {
        bool letters = as[1] != '-' && (*given)[1] != '-';
        if (!letters && !strcmp(*given, as)) { fail_usage("leave one of the two out", "%s is given twice", as); }
        if (!letters) { fail_usage("leave one of the two out", "%s is given twice, as %s and as %s", option_long_name(s).c_str(), *given, as); }
        fprintf(stderr, "WARNING: %s is given twice; the last one counts\n", as);
    }
    *given = as;
}

__attribute__((noreturn))
static inline void option_fail_unknown(const char* arg) {
    std::string nearest = option_nearest(arg);
    if (arg[0] != '-') {
        fail_usage("options start with --, and flags take no value (--name or --no-name); --help lists all", "'%s' stands where an option is expected", arg);
    }
    std::string hint = nearest.empty() ? std::string("--help lists all options") : "did you mean " + nearest + "? --help lists all options";
    fail_usage(hint.c_str(), "unknown option '%s'", arg);
}

// The value of an option whose next argument it is. *i is moved onto it.
static inline const char* option_next_value(const OptionSpec* s, const char* as, int argc, char** argv, int* i) {
    const char* next = *i + 1 < argc ? argv[*i + 1] : NULL;
    bool number = s->type == OPTION_INT || s->type == OPTION_INT64 || s->type == OPTION_FLOAT || s->type == OPTION_BOOL;
    bool is_option = next && next[0] == '-' && next[1] && !(number && (isdigit((unsigned char)next[1]) || next[1] == '.'));
    if (!next || is_option) {
        std::string hint = option_long_name(s) + " needs a value: " + s->help;
        if (is_option && !number) { hint += std::string("; if the value is to be ") + next + ", write " + option_long_name(s) + "=" + next; }
        fail_usage(hint.c_str(), "%s: the value is missing%s%s", as, next ? ", the next argument is the option " : "", next ? next : "");
    }
    ++*i;
    return next;
}

// Sets what the preset says and the command line does not; its fp8_ options only where --dtype leaves room for float8.
static inline void options_apply_preset(Options* o) {
    const bool fp8 = o->dtype == OPT_DTYPE_AUTO || o->dtype == OPT_DTYPE_FLOAT8;
    for (const char* set = option_presets[o->preset].sets; *set; set += strlen(set) + 1) {
        const size_t length = strcspn(set, "=");
        const OptionSpec* s = option_find(set, length);
        require(s && set[length], "correct PRESET_TABLE", "the preset %s sets '%s', which is no option=value", option_presets[o->preset].name, set);
        const char** given = &o->given[s - option_specs()];
        if (*given || (!fp8 && !strncmp(set, "fp8_", 4))) { continue; }
        option_store(o, s, "--preset", set + length + 1);
        *given = OPTION_BY_PRESET;
    }
}

static inline void options_check(Options* o);  // in option_table.h

// Parses a command line into *o, defaults first. Returns only if all is well and no action (--help ...) was asked for.
static inline void options_parse(Options* o, int argc, char** argv) {
    options_init(o);
    bool print_config = false;
    const char* program = argc > 0 ? argv[0] : "train_gpt_fp8";
    for (int i = 1; i < argc; i++) {
        const char* arg = argv[i];
        if (!strcmp(arg, "--help") || (!strcmp(arg, "-h") && (i + 1 == argc || argv[i + 1][0] == '-'))) {
            options_print_help(stdout, program);
            exit(0);
        }
        if (!strcmp(arg, "--help-markdown")) {
            options_print_markdown(stdout);
            exit(0);
        }
        if (!strcmp(arg, "--print-config")) {
            print_config = true;
            continue;
        }
        if (arg[0] == '-' && arg[1] != '-') {  // llm.c's letters
            const OptionSpec* s = option_find_letters(arg + 1);
            if (!s && (s = option_find_llmc_alias(arg + 1))) { fprintf(stderr, "WARNING: %s is read as -%c, as llm.c does\n", arg, arg[1]); }
            if (!s) { option_fail_unknown(arg); }
            option_store(o, s, arg, option_next_value(s, arg, argc, argv, &i));
            option_note_given(o, s, arg);
            continue;
        }
        if (arg[0] != '-' || !arg[2]) { option_fail_unknown(arg); }
        const char* name = arg + 2;
        const char* equals = strchr(name, '=');
        size_t len = equals ? (size_t)(equals - name) : strlen(name);
        const OptionSpec* s = option_find(name, len);
        bool negated = false;
        if (!s && len > 3 && (!strncmp(name, "no-", 3) || !strncmp(name, "no_", 3))) {
            s = option_find(name + 3, len - 3);
            negated = s && s->type == OPTION_BOOL;
            if (s && !negated) { fail_usage("only flags can be switched off with --no-", "%s: %s is not a flag", arg, option_long_name(s).c_str()); }
            if (s && equals) { fail_usage("write the name alone", "%s: a switched-off flag takes no value", arg); }
        }
        if (!s) { option_fail_unknown(arg); }
        std::string as = option_long_name(s);
        if (s->type == OPTION_BOOL && !equals) { *(bool*)option_value(o, s) = !negated; }
        else { option_store(o, s, as.c_str(), equals ? equals + 1 : option_next_value(s, as.c_str(), argc, argv, &i)); }
        option_note_given(o, s, arg);
    }
    options_apply_preset(o);
    options_check(o);
    if (print_config) {
        fputs(options_to_text(o).c_str(), stdout);
        exit(0);
    }
}

#endif
