/* bench_json.h - results as JSON: numbers and texts are appended in order; the caller opens and closes what holds them */
#ifndef DEV_BENCH_JSON_H
#define DEV_BENCH_JSON_H

#include <math.h>
#include <stdio.h>
#include <string>

// Appends to a text; fields of the innermost object or list. A number that is not finite becomes null.
typedef struct { std::string text; } Json;
static void json_comma(Json* j, const char* key) {
    char last = j->text.empty() ? '{' : j->text.back();
    if (last != '{' && last != '[') { j->text += ","; }
    if (key) { j->text += std::string("\"") + key + "\":"; }
}
static void json_open(Json* j, const char* key, char bracket) { json_comma(j, key); j->text += bracket; }
static void json_close(Json* j, char bracket) { j->text += bracket; }
static void json_number(Json* j, const char* key, double x) {
    char number[32];
    snprintf(number, sizeof(number), "%.10g", x);
    json_comma(j, key);
    j->text += isfinite(x) ? number : "null";
}
static void json_bool(Json* j, const char* key, bool x) { json_comma(j, key); j->text += x ? "true" : "false"; }
static void json_string(Json* j, const char* key, const std::string& s) {
    json_comma(j, key);
    j->text += '"';
    for (unsigned char c : s) {
        char escape[8];
        if (c == '"' || c == '\\') { j->text += '\\'; j->text += (char)c; }
        else if (c < 0x20 || c >= 0x7f) { snprintf(escape, sizeof(escape), "\\u%04x", c); j->text += escape; }
        else { j->text += (char)c; }
    }
    j->text += '"';
}

#endif
