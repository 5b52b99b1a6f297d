/* test_padding.cu - llmc/padding.h against a list of all places: which are real, where their elements go, every range of them */
#include "dev/test/test.h"
#include <algorithm>
#include "llmc/padding.h"

// heads as columns, as rows; channels; both; a hidden axis; two segments with a whole row of zeros between; nothing to do
static const PaddedShape shapes[] = {
    {{1, 5, 8}, {4, 5, 8}}, {{12, 5, 8}, {1, 20, 32}}, {{1, 1, 1}, {12, 5, 8}}, {{1, 7, 7}, {1, 20, 32}}, {{1, 20, 32}, {1, 80, 128}}, {{2, 1, 3}, {2, 1, 2}},
    {{3, 2, 2}, {1, 3, 8}}, {{2, 2, 5}, {1, 6, 6}}, {{1, 6, 6}, {2, 3, 3}}, {{1, 1, 1}, {1, 1, 16}}};

// By place: its element as files count them, -1 for a zero.
static std::vector<int> list_of_places(const PaddedShape* s) {
    std::vector<int> places;
    int element = 0;
    for (int a = 0; a < s->rows.segments; a++) {
        for (int r = 0; r < s->rows.padded; r++) {
            for (int b = 0; b < s->cols.segments; b++) {
                for (int c = 0; c < s->cols.padded; c++) { places.push_back(r < s->rows.real && c < s->cols.real ? element++ : -1); }
            }
        }
    }
    return places;
}
template <class T>
static void check_ranges(const PaddedShape* s) {
    const std::vector<int> places = list_of_places(s);
    const size_t part = places.size(), step = part < 200 ? 1 : 37;
    for (size_t at = 0; at <= part; at += step) {
        size_t before = 0;
        for (size_t i = 0; i < at; i++) { before += places[i] >= 0; }
        CHECK(padding_real(s, at) == before, "%zu real elements before place %zu, not %zu", padding_real(s, at), at, before);
        for (size_t n = 0; at + n <= part; n += step) {
            std::vector<T> here, file, x;
            for (size_t i = at; i < at + n; i++) {
                here.push_back(places[i] < 0 ? (T)0 : (T)(1 + places[i] % 60000));
                if (places[i] >= 0) { file.push_back(here.back()); }
            }
            x = file;
            x.resize(n + 1, (T)9);  // places that are to be zeros hold something else, and one beyond stays
            x[n] = 7;
            padding_expand(s, at, n, x.data(), sizeof(T));
            CHECK(std::equal(here.begin(), here.end(), x.begin()) && x[n] == 7, "expand: places %zu to %zu", at, at + n);
            const size_t real = padding_compact(s, at, n, x.data(), sizeof(T));
            CHECK(real == file.size() && std::equal(file.begin(), file.end(), x.begin()) && x[n] == 7, "compact: places %zu to %zu", at, at + n);
        }
    }
}
static void test_padding_every_range(void) {
    for (const PaddedShape& s : shapes) {
        check_ranges<uint16_t>(&s);
        check_ranges<float>(&s);
    }
}
static void test_padding_plain_shapes(void) {
    const PaddedShape plain = {{1, 6, 6}, {2, 3, 3}};
    CHECK(padded_shape_is_plain(&plain) && !padded_shape_is_plain(&shapes[0]) && !padded_shape_is_plain(&shapes[3]) && !padded_shape_is_plain(&shapes[7]), "plain is what has no zeros");
    CHECK(padded_axis_real(shapes[1].rows) == 60 && padded_axis_length(shapes[1].rows) == 96, "%d of %d", padded_axis_real(shapes[1].rows), padded_axis_length(shapes[1].rows));
}

int main(int argc, char** argv) {
    static const Test tests[] = {
        {"padding_every_range", test_padding_every_range, QUICK},
        {"padding_plain_shapes", test_padding_plain_shapes, QUICK},
    };
    return TEST_MAIN(tests);
}
