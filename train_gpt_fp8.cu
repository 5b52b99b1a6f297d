/* train_gpt_fp8.cu - pretrains and fine-tunes GPT-2 / GPT-3 models with FP8 matrix products: model, forward, backward, update and loop
 *
 * The whole program: read it top to bottom. The pieces it calls are in llmc/, one concern a header; llmc/README.md is the tour. Built by nvcc it runs
 * on the GPU, built by g++ with llmc/cpu first on the include path it runs on the CPU device: the same source.
 *
 * [A] dimensions and constraints        [B] tensors and memory        [C] parameters: initial values, load, save
 * [D] forward                           [E] backward                  [F] optimizer
 * [G] a run and its ranks               [H] checkpoint and resume     [I] evaluation and sampling
 * [J] main loop
 *
 * Notation: B sequences of T tokens a micro-step, N = B*T; C channels, NH heads of hs = C/NH; V tokens, Vp padded; L layers. Matrices are
 * (out, in): y = x W^T + b. Accumulation: parameter gradients +=, activation gradients =, the residual stream's gradient +=.
 */
#ifndef TRAIN_GPT_FP8_CU
#define TRAIN_GPT_FP8_CU

#include <math.h>
#include <signal.h>
#include <time.h>
#ifdef _OPENMP
#include <omp.h>
#endif
#ifdef GPT_WITH_MPI
#define OMPI_SKIP_MPICXX 1
#include <mpi.h>
#endif
#include <algorithm>
#include <string>
#include <thread>
#include <vector>

// defines: require, fail, fail_usage, mallocCheck, CEIL_DIV, ROUND_UP
#include "llmc/common.h"
// defines: Options, options_parse, options_print_llmc, options_print_rest, options_print_row, options_to_text, options_diff, options_is_set
#include "llmc/option_table.h"
// defines: Tokenizer, tokenizer_init, tokenizer_print, tokenizer_free
#include "llmc/tokenizer.h"
// defines: TokenizerEncoder, tokenizer_encode_init, tokenizer_encode, tokenizer_encode_free
#include "llmc/tokenizer_encode.h"
// defines: DataLoader, dataloader_init, dataloader_read, dataloader_digest, dataloader_llmc_get_order, dataloader_llmc_set_order, dataloader_free
#include "llmc/dataloader.h"
// defines: EvalLoader, eval_loader_init, eval_loader_read_rows, eval_loader_add_losses, eval_loader_result, eval_loader_free
#include "llmc/eval_loader.h"
// defines: Mt19937, mt19937_init, normal_fill, random_f32
#include "llmc/rand.h"
// defines: LearningRate, learning_rate_get
#include "llmc/schedulers.h"
// defines: sample_softmax
#include "llmc/sampler.h"
// defines: OutlierDetector, outlier_detector_update, outlier_detector_skips
#include "llmc/outlier_detector.h"
// defines: ModelHeader, model_file_open, model_file_read, model_file_read_header, StateWriter, StateReader, state_write_section, state_read_section
#include "llmc/formats.h"
// defines: PaddedAxis, PaddedShape, padding_real, padding_expand, padding_compact
#include "llmc/padding.h"
// defines: StateSet, StateSetWriter, state_set_open, state_set_read, state_set_write_begin, state_set_write_end, state_set_write_commit
#include "llmc/state_set.h"
// defines: checkpoint_find_latest, checkpoint_find_before, checkpoint_verify, checkpoint_begin, checkpoint_done, checkpoint_prune
#include "llmc/checkpoint.h"
// defines: Ranks, ranks_init
#include "llmc/ranks.h"
// defines: Control, control_start, control_barrier, control_broadcast, control_all_gather, control_agree, control_note, control_progress, control_fail, control_finish
#include "llmc/control.h"
// defines: LlmcState, llmc_state_open, llmc_state_begin, llmc_state_next, llmc_state_close
#include "llmc/llmc_state.h"
// defines: Logger, logger_init
#include "llmc/logger.h"
// defines: launch, bf16, cudaCheck
#include "llmc/device.cuh"
// defines: profile_begin, profile_end, profile_print
#include "llmc/profile.cuh"
// defines: Device, device_init, device_alloc, device_has_fp8
#include "llmc/gpu.cuh"
// defines: GpuInfo, gpu_info_init, gpu_info_print, gpu_info_free
#include "llmc/gpu_info.h"
// defines: mfu_share, mfu_flops, mfu_speed_of_light
#include "llmc/mfu.h"
// defines: Comm, comm_init, comm_fork, comm_join, comm_all_reduce, comm_reduce_scatter, comm_reduce_scatter_exact, comm_all_gather
#include "llmc/comm.cuh"
// defines: GemmShape, gemm, gemm_plan_or_fail, Operand, linear_forward, linear_dgrad, linear_wgrad, linear_forward_gelu, linear_dgrad_gelu
#include "llmc/matmul.cuh"
// defines: encoder_forward, encoder_backward, encoder_group_tokens
#include "llmc/encoder.cuh"
// defines: layernorm_forward, layernorm_backward
#include "llmc/layernorm.cuh"
// defines: attention_forward, attention_backward, attention_decode, attention_scratch_bytes, attention_is_flash
#include "llmc/attention.cuh"
// defines: gelu_forward, gelu_backward
#include "llmc/gelu.cuh"
// defines: fused_classifier
#include "llmc/fused_classifier.cuh"
// defines: bias_backward, column_sum_partials
#include "llmc/column_sum.cuh"
// defines: Fp8Recipe, fp8_recipes
#include "llmc/fp8_recipes.h"
// defines: Fp8Scaling, fp8_scaling_init, fp8_scaling_begin, fp8_scaling_check
#include "llmc/fp8_scaling.h"
// defines: fp8_quantize, fp8_transpose
#include "llmc/fp8_quantize.cuh"
// defines: fp8_fuses, fp8_layernorm_forward, fp8_layernorm_again, fp8_layernorm_backward, fp8_gelu_forward, fp8_gelu_backward, fp8_adamw_fuses, fp8_adamw_update
#include "llmc/fp8_producers.cuh"
// defines: fp8_attention_fuses, fp8_attention_forward, fp8_attention_backward
#include "llmc/fp8_attention.cuh"
// defines: fp8_pack, fp8_unpack, fp8_pack_exponents
#include "llmc/fp8_activations.cuh"
// defines: adamw_update_moments, AdamWParams, AdamWLayout, init_fast
#include "llmc/adamw.cuh"
// defines: sum_squares, sum_all
#include "llmc/global_norm.cuh"
// defines: Goodput, goodput_open, goodput_add, goodput_tick, goodput_end, goodput_text, goodput_duration
#include "llmc/goodput.h"
// defines: fp8_json_line, fp8_log_append, fp8_guard_trips
#include "llmc/fp8_report.h"
// defines: Fp8Calibrator, fp8_calibrator_measure
#include "llmc/fp8_calibrate.cuh"

// ---------------------------------------------------------------------------- [A] dimensions and constraints

// What --model may name besides a file. gpt2: by depth, gpt3: by channels. Heads and channels as in the GPT-2 and GPT-3 papers.
typedef struct { const char* name; int L, C, NH, max_seq_len; } Descriptor;
static const Descriptor descriptors[] = {
    {"d6", 6, 384, 6, 1024},           {"d12", 12, 768, 12, 1024},        {"d24", 24, 1024, 16, 1024},       {"d36", 36, 1280, 20, 1024},
    {"d48", 48, 1600, 25, 1024},       {"d60", 60, 1920, 30, 1024},       {"d72", 72, 2880, 30, 1024},       {"d84", 84, 3456, 36, 1024},
    {"gpt3:c384", 6, 384, 6, 2048},    {"gpt3:c768", 12, 768, 12, 2048},  {"gpt3:c1024", 24, 1024, 16, 2048}, {"gpt3:c1536", 24, 1536, 16, 2048},
    {"gpt3:c2048", 24, 2048, 16, 2048}, {"gpt3:c2560", 32, 2560, 32, 2048}, {"gpt3:c4096", 32, 4096, 32, 2048}, {"gpt3:c12288", 96, 12288, 96, 2048},
};
#define GPT2_VOCAB 50257
#define BYTE_VOCAB 256
#define VOCAB_PADDING 128  // the padded vocabulary is a multiple: aligned rows for the head's products

static const Descriptor* descriptor_find(const char* name) {
    if (!strncmp(name, "gpt2:", 5)) { name += 5; }
    for (const Descriptor& d : descriptors) { if (!strcmp(name, d.name)) { return &d; } }
    return NULL;
}

// Does the command line say all sizes, so that no model needs to be named?
static bool gpt_sizes_given(const Options* o) { return o->layers && o->channels && o->heads && !options_is_set(o, "model"); }

// Positions of a sequence in the activations. float8: operands have rows of N bytes (x.t, dY.t), and a product of FP8 takes multiples of 16; the positions
// beyond T have no target, and causal attention keeps them from the others.
static int gpt_padded_seq_len(int T, bool fp8) { return fp8 ? ROUND_UP(T, 16) : T; }

// Channels of a head as they lie here: rows of whole 16 bytes for a head, and NH heads in multiples of 16, as FP8 products take them. What is beyond the model's
// own is zero in every tensor and stays so (llmc/padding.h); layernorm, attention's scale and files know the model's own.
static int gpt_padded_head_size(const ModelHeader* c) {
    const int hs = ROUND_UP(c->channels / c->num_heads, 8);
    return c->num_heads * hs % 16 ? hs + 8 : hs;
}

// The dimensions of a new model: descriptor and explicit sizes. tokenizer_vocab: 0 if there is no tokenizer.
static ModelHeader gpt_config_from_options(const Options* o, int tokenizer_vocab) {
    ModelHeader c;
    memset(&c, 0, sizeof(c));
    const bool explicit_sizes = gpt_sizes_given(o);
    const Descriptor* d = descriptor_find(o->model);
    if (!d && !explicit_sizes) {
        std::string names;
        for (const Descriptor& each : descriptors) { names += std::string(names.empty() ? "" : ", ") + each.name; }
        fail(("name one of " + names + ", a file that ends in .bin, or give --layers, --channels and --heads").c_str(), "unknown model '%s'", o->model);
    }
    c.num_layers = o->layers ? o->layers : d->L;
    c.channels = o->channels ? o->channels : d->C;
    c.num_heads = o->heads ? o->heads : d->NH;
    c.max_seq_len = explicit_sizes ? gpt_padded_seq_len(o->seq_len, o->dtype == OPT_DTYPE_FLOAT8) : d->max_seq_len;
    c.vocab_size = o->vocab_size ? o->vocab_size : tokenizer_vocab ? tokenizer_vocab : GPT2_VOCAB;
    c.padded_vocab_size = ROUND_UP(c.vocab_size, VOCAB_PADDING);
    return c;
}

// The recipe with what options change of it.
static Fp8Settings fp8_settings_from_options(const Options* o) {
    Fp8Settings s = fp8_settings(&fp8_recipes[o->fp8_recipe]);
    auto format = [](Fp8Format* f, int option) { if (option != OPT_FORMAT_RECIPE) { *f = option == OPT_FORMAT_E4M3 ? FP8_E4M3 : FP8_E5M2; } };
    auto fast = [](bool* f, int option) { if (option != OPT_FAST_RECIPE) { *f = option == OPT_FAST_ON; } };
    format(&s.x, o->fp8_format_x);
    format(&s.dy, o->fp8_format_dy);
    fast(&s.fast_fprop, o->fp8_fast_fprop);
    fast(&s.fast_dgrad, o->fp8_fast_dgrad);
    fast(&s.fast_wgrad, o->fp8_fast_wgrad);
    s.powers_of_two = o->fp8_power_of_two;
    if (s.recipe->history || options_is_set(o, "fp8_history")) { s.history = o->fp8_history; }
    s.most_recent = o->fp8_history_algorithm == OPT_HISTORY_RECENT;
    s.margin = o->fp8_margin;
    s.head = o->fp8_head;
    char why[160];
    const char* wrong = fp8_settings_check(&s, why);
    require(!wrong, "leave the option out, or choose another --fp8-recipe", "--fp8-recipe %s: %s", s.recipe->name, wrong);
    return s;
}

// The stated constraints, each with the tensor that needs it. fp8: linear layers multiply FP8.
static void gpt_check_config(const ModelHeader* c, int B, int T, bool fp8) {
    int C = c->channels, NH = c->num_heads;
    const long long N = (long long)B * gpt_padded_seq_len(T, fp8);
    const struct { bool holds; const char *tensor, *rule, *hint; } rules[] = {
        {C % NH == 0, "qkv (N,3C)", "C must be a multiple of NH", "change --channels or --heads"},
        {c->padded_vocab_size % 16 == 0, "wte (Vp,C)", "Vp must be a multiple of 16", "pad the vocabulary of the model file"},
        {c->vocab_size <= 65536, "tokens", "token shards hold 16-bit tokens, so V is at most 65536", "choose a smaller vocabulary"},
        {gpt_padded_seq_len(T, fp8) <= c->max_seq_len, "wpe (maxT,C)", fp8 ? "T, rounded up to a multiple of 16 for float8, must not exceed the positions of the model" :
         "T must not exceed the positions of the model", "choose a smaller --seq-len"},
        {N <= (1ll << 30) / NH, "lse (B,NH,T)", "B*T*NH must not exceed 2^30: rows are counted in 32 bits", "choose a smaller --batch-size"},
    };
    for (auto& r : rules) {
        if (!r.holds) {
            fail(r.hint, "these sizes are not possible: L %d, C %d, NH %d, V %d, Vp %d, maxT %d, B %d, T %d: %s: %s", c->num_layers, C, NH, c->vocab_size,
                 c->padded_vocab_size, c->max_seq_len, B, T, r.tensor, r.rule);
        }
    }
}

// ---------------------------------------------------------------------------- [B] tensors and memory

// Every parameter tensor, in the order of the model file. per_layer: L such matrices follow each other. linear: index of the linear layer whose weight it
// is (FP8 operand, gradient in the working type), or -1 (gradient in f32). init: std of the normal initial values; < 0: the constant -init - 1;
// residual: std scaled by 1/sqrt(2L). decay: weight decay applies.
//    name       rows       cols      per_layer  linear        init   residual decay
#define PARAM_TABLE(X) \
    X(wte,      vocab,     channels, 0, -1,             0.02,  0, 1, "token embedding, tied with the head") \
    X(wpe,      positions, channels, 0, -1,             0.02,  0, 1, "position embedding") \
    X(ln1w,     one,       channels, 1, -1,             -2,    0, 0, "first layernorm, weight") \
    X(ln1b,     one,       channels, 1, -1,             -1,    0, 0, "first layernorm, bias") \
    X(qkvw,     qkv,       channels, 1, LINEAR_QKV,     0.02,  0, 1, "attention input projection") \
    X(qkvb,     one,       qkv,      1, -1,             -1,    0, 0, "") \
    X(attprojw, channels,  heads,    1, LINEAR_ATTPROJ, 0.02,  1, 1, "attention output projection") \
    X(attprojb, one,       channels, 1, -1,             -1,    0, 0, "") \
    X(ln2w,     one,       channels, 1, -1,             -2,    0, 0, "second layernorm, weight") \
    X(ln2b,     one,       channels, 1, -1,             -1,    0, 0, "second layernorm, bias") \
    X(fcw,      hidden,    channels, 1, LINEAR_FC,      0.02,  0, 1, "MLP input projection") \
    X(fcb,      one,       hidden,   1, -1,             -1,    0, 0, "") \
    X(fcprojw,  channels,  hidden,   1, LINEAR_FCPROJ,  0.02,  1, 1, "MLP output projection") \
    X(fcprojb,  one,       channels, 1, -1,             -1,    0, 0, "") \
    X(lnfw,     one,       channels, 0, -1,             -2,    0, 0, "final layernorm, weight") \
    X(lnfb,     one,       channels, 0, -1,             -1,    0, 0, "final layernorm, bias")

#define PARAM_ENUM(name, rows, cols, per_layer, linear, init, residual, decay, doc) P_##name,
typedef enum { PARAM_TABLE(PARAM_ENUM) NUM_PARAMS } ParamId;
#undef PARAM_ENUM

typedef struct {
    const char* name;
    PaddedShape shape;        // of one layer: of channels, 4C, heads (NH of C/NH) and qkv (3 NH of C/NH), here and in files
    int rows, cols, layers;   // as they lie here; layers: 1 for what is not per layer
    int linear;
    double init;
    bool residual, decay;
    size_t part, size;        // elements of one layer, of all
    size_t real_part, offset; // elements of one layer, and before this tensor, in files
    // among P ranks, set by gpt_shard_specs; with one rank a layer is one shard, without padding
    size_t shard, stride;     // elements of a shard of one layer; from layer to layer of the parameter and its gradient: whole shards
    bool sharded;             // ZeRO-1: a rank reduces, updates and keeps the optimizer's state of its shard only
    size_t first, held;       // of a layer, the elements whose optimizer state this rank has
    size_t state_stride;      // from layer to layer of that state
} ParamSpec;

// Fills spec[NUM_PARAMS]; returns the number of parameters of the model, which is that of files.
static uint64_t gpt_param_specs(ParamSpec* spec, const ModelHeader* c) {
    const int C = c->channels, NH = c->num_heads, hs = C / NH, padded = gpt_padded_head_size(c), Cp = NH * padded;
    const PaddedAxis one = {1, 1, 1}, vocab = {1, c->padded_vocab_size, c->padded_vocab_size}, positions = {1, c->max_seq_len, c->max_seq_len};
    const PaddedAxis channels = {1, C, Cp}, hidden = {1, 4 * C, 4 * Cp}, heads = {NH, hs, padded}, qkv = {3 * NH, hs, padded};
    int i = 0;
    uint64_t total = 0;
#define PARAM_SPEC(name, rows, cols, per_layer, linear, init, residual, decay, doc) \
    spec[i++] = {#name, {rows, cols}, padded_axis_length(rows), padded_axis_length(cols), per_layer ? c->num_layers : 1, linear, init, residual, decay, 0, 0, 0, 0, 0, 0, false, 0, 0, 0};
    PARAM_TABLE(PARAM_SPEC)
#undef PARAM_SPEC
    for (i = 0; i < NUM_PARAMS; i++) {
        spec[i].part = (size_t)spec[i].rows * spec[i].cols;
        spec[i].size = spec[i].part * spec[i].layers;
        spec[i].real_part = padding_real(&spec[i].shape, spec[i].part);
        spec[i].offset = total;
        total += spec[i].real_part * spec[i].layers;
    }
    return total;
}
// The elements at .. at + n of layer l in files: *first of the model, returns how many.
static size_t param_in_files(const ParamSpec* s, int l, size_t at, size_t n, uint64_t* first) {
    const size_t before = padding_real(&s->shape, at);
    *first = s->offset + l * s->real_part + before;
    return padding_real(&s->shape, at + n) - before;
}
static uint64_t gpt_count_parameters(const ModelHeader* c) {
    ParamSpec spec[NUM_PARAMS];
    return gpt_param_specs(spec, c);
}

// Deals the parameters out to `size` ranks. A layer's matrix is cut in equal shards of whole 256 elements, the last of which may be short or empty: 16 x 16 is
// what the quantize kernel takes. Layernorms and biases are small: every rank has all of them.
static void gpt_shard_specs(ParamSpec* spec, int rank, int size, int zero_stage) {
    for (int p = 0; p < NUM_PARAMS; p++) {
        ParamSpec* s = &spec[p];
        const bool matrix = s->rows > 1 && size > 1;
        s->shard = matrix ? ROUND_UP(CEIL_DIV(s->part, (size_t)size), (size_t)256) : s->part;
        s->stride = matrix ? s->shard * size : s->part;
        s->sharded = matrix && zero_stage == 1;
        s->first = !s->sharded ? 0 : s->shard * rank < s->part ? s->shard * rank : s->part;
        s->held = !s->sharded ? s->part : s->part - s->first < s->shard ? s->part - s->first : s->shard;
        s->state_stride = s->sharded ? s->shard : s->part;
    }
}

static const ParamId linear_weight[NUM_LINEARS + 1] = {P_qkvw, P_attprojw, P_fcw, P_fcprojw, P_wte};  // the last: LINEAR_HEAD
static const ParamId linear_bias[NUM_LINEARS] = {P_qkvb, P_attprojb, P_fcb, P_fcprojb};

// Elements from one layer's qkv to the next: a multiple of 128, so that each is aligned whatever the number of tokens in it.
#define QKV_STRIDE(N, C) ROUND_UP((N) * 3 * (C), (size_t)128)
// Exponents of h, qkv and y of a layer, kept in one byte an element.
static size_t packed_exponents(size_t N, size_t C) { return fp8_pack_exponents(N, (int)(4 * C)) + fp8_pack_exponents(N, (int)(3 * C)) + fp8_pack_exponents(N, (int)C); }

// Sums of an optimizer step; those before SCALAR_REST are added over the ranks. STOP, SAVE: ranks that were told to end, that want a checkpoint. OPERANDS: FP8
// operands with a NaN or an inf.
enum { SCALAR_LOSS, SCALAR_STOP, SCALAR_SAVE, SCALAR_SHARDS, SCALAR_OPERANDS, SCALAR_REST, NUM_SCALARS };

// Every activation and scratch buffer. count in elements; fp8 marks buffers that exist for float8 only, plain those that exist otherwise only, head for an FP8 head.
// Activations live from forward to backward, scratch dies within a layer, or on the way from one to the next. r: recompute level; quantized: FP8 operands are kept
// for backward; packed: qkv, y and h are kept in one byte an element; kept: y.t and lse live until backward. What is not kept is scratch of one layer (class_of).
// x_scales(outer, inner), dy_scales: bytes of the descales of an order of such an operand.
//    name        type     elements                                   when    class
#define ACT_TABLE(X) \
    X(inputs,     int,     N,                                         both,   MEM_ACTIVATIONS) \
    X(targets,    int,     N,                                         both,   MEM_ACTIVATIONS) \
    X(group_order, int,    N,                                         both,   MEM_SCRATCH) \
    X(group_start, int,    N + 1,                                     both,   MEM_SCRATCH) \
    X(group_token, int,    N,                                         both,   MEM_SCRATCH) \
    X(residual,   floatX,  (r < 3 ? 2 * L + 1 : L + 2) * N * C,       both,   MEM_ACTIVATIONS) /* inputs of ln1, ln2 of every layer, of lnf */ \
    X(ln_mean,    float,   (r < 3 ? 2 * L + 1 : 3) * N,               both,   MEM_ACTIVATIONS) \
    X(ln_rstd,    float,   (r < 3 ? 2 * L + 1 : 3) * N,               both,   MEM_ACTIVATIONS) \
    X(ln,         floatX,  2 * L * N * C,                             plain && r < 2, MEM_ACTIVATIONS) /* x of qkv and fc */ \
    X(ln_q,       uint8_t, (r < 2 ? 2 * L : 1) * N * C,               quantized, class_of(r < 2)) /* the same, quantized: x.t */ \
    X(ln_s,       uint8_t, (r < 2 ? 2 * L : 1) * x_scales(C, N),      quantized, class_of(r < 2)) /* its descales */ \
    X(qkv,        floatX,  (r < 3 ? L : 1) * QKV_STRIDE(N, C),        !packed, class_of(r < 3)) \
    X(lse,        float,   (kept ? L : 1) * N * NH,                   both,   class_of(kept)) \
    X(y,          floatX,  (r < 3 ? L : 1) * N * C,                   !packed, class_of(r < 3)) \
    X(y_q,        uint8_t, (kept ? L : 1) * N * C,                    quantized, class_of(kept)) /* y.t */ \
    X(y_s,        uint8_t, (kept ? L : 1) * x_scales(C, N),           quantized, class_of(kept)) \
    X(h,          floatX,  (r < 3 ? L : 1) * N * 4 * C,               !packed, class_of(r < 3)) \
    X(wide,       floatX,  N * 4 * C,                                 packed, MEM_SCRATCH) /* qkv and y, then h, of the layer at hand */ \
    X(codes,      uint8_t, L * N * 8 * C,                             packed, MEM_ACTIVATIONS) /* of a layer's h, qkv and y, one after another */ \
    X(exponents,  uint8_t, L * packed_exponents(N, C),                packed, MEM_ACTIVATIONS) \
    X(cache,      floatX,  L * QKV_STRIDE(T, C),                      r >= 3 && g->samples, MEM_ACTIVATIONS) /* qkv of one sequence that is sampled */ \
    X(g,          floatX,  L * N * 4 * C,                             plain && r < 1, MEM_ACTIVATIONS) /* x of fcproj */ \
    X(g_q,        uint8_t, (r < 1 ? L : 1) * N * 4 * C,               quantized, class_of(r < 1)) /* g.t */ \
    X(g_s,        uint8_t, (r < 1 ? L : 1) * x_scales(4 * C, N),      quantized, class_of(r < 1)) \
    X(lnf,        floatX,  N * C,                                     both,   MEM_SCRATCH) /* also x of qkv and fc where only its codes are kept, or nothing */ \
    X(losses,     float,   N,                                         both,   MEM_ACTIVATIONS) \
    X(head_x,     uint8_t, (1 + g->fp8_keep_t) * head_rows * C,       head,   MEM_SCRATCH) /* a chunk of lnf quantized: k, then t */ \
    X(head_xs,    uint8_t, x_scales(head_rows, C) + x_scales(C, head_rows), head, MEM_SCRATCH) \
    X(head_dy,    uint8_t, (1 + g->fp8_keep_t) * head_rows * Vp,      head,   MEM_SCRATCH) /* of dlogits */ \
    X(head_dys,   uint8_t, dy_scales(head_rows, Vp) + dy_scales(Vp, head_rows), head, MEM_SCRATCH) \
    X(logits,     floatX,  max(head_rows * Vp, attention_elements),   both,   MEM_SCRATCH) /* a chunk of rows, dlogits in place; attention's scratch; moments */ \
    X(operand_k,  uint8_t, N * 4 * C,                                 fp8,    MEM_SCRATCH) /* k of the operand at hand */ \
    X(operand_t,  uint8_t, N * 4 * C,                                 fp8,    MEM_SCRATCH) /* t of dY */ \
    X(k_scales,   uint8_t, max(x_scales(N, 4 * C), dy_scales(N, 4 * C)), fp8, MEM_SCRATCH) \
    X(again_k,    uint8_t, N * C,                                     fp8 && r >= 3, MEM_SCRATCH) /* k of the x at hand, while a layer is made again: dY waits in operand_k */ \
    X(again_s,    uint8_t, x_scales(N, C),                            fp8 && r >= 3, MEM_SCRATCH) \
    X(t_scales,   uint8_t, dy_scales(4 * C, N),                       fp8,    MEM_SCRATCH) \
    X(dresidual,  floatX,  N * C,                                     both,   MEM_SCRATCH) \
    X(dx,         floatX,  N * C,                                     both,   MEM_SCRATCH) /* gradient of a layernorm's output, of y, of lnf; output of attproj, fcproj */ \
    X(dwide,      floatX,  N * 4 * C,                                 both,   MEM_SCRATCH) /* gradient of g, h, qkv; g, unless it is kept; qkv of a token that is sampled, DECODE_ROWS rows */ \
    X(ln_means,   float2,  N,                                         fp8,    MEM_SCRATCH) /* of the layernorm's backward at hand */ \
    X(partial,    float,   column_sum_partials((int)N, (int)(4 * C)), both,   MEM_SCRATCH) \
    X(norm_partial, float, norm_blocks,                               both,   MEM_SCRATCH) \
    X(scalars,    float,   NUM_SCALARS,                               both,   MEM_SCRATCH)

template <class floatX>
struct Activations {
#define ACT_FIELD(name, type, elements, when, cls) type* name;
    ACT_TABLE(ACT_FIELD)
#undef ACT_FIELD
};

// A model on a device. floatX: float (float32), or bf16 (bfloat16, and float8, whose linear layers read FP8 operands).
template <class floatX>
struct GPT {
    Device* dev;
    Comm* comm;                        // the ranks that train together
    Comm alone;                        // one rank, for who has no other
    ModelHeader model, config;         // as in files; with the channels that rows have here (gpt_padded_head_size)
    ParamSpec spec[NUM_PARAMS];
    uint64_t num_parameters;           // of the model, as in files
    bool fp8, fp8_keep_t;              // keep_t: operands have a transposed copy (all but 10.x with one scale a tensor)
    bool fp8_head;                     // the head has FP8 operands as well (unless it was moved to BF16)
    bool fp8_wgrad_bf16;               // gradients of weights are multiplied from BF16
    bool fp8_fusion;                   // layernorm, GELU and AdamW write FP8 codes themselves where they can
    bool fp8_guarded;                  // any linear layer may move to BF16 and back
    bool fp8_activations;              // qkv, y and h are kept for backward in one byte an element
    bool samples;                      // there will be sampling: it needs a key-value cache
    int recompute;
    int gelu_fusion;                   // 1: fc's product applies GELU, 2: fcproj's dgrad its derivative as well; float32 and bfloat16 only
    int B, T;                          // what the activations are allocated for; T is padded for float8 (gpt_padded_seq_len)
    int head_rows;                     // rows of logits alive at once
    floatX* param[NUM_PARAMS];
    void* grad[NUM_PARAMS];            // floatX for weights of linear layers, f32 for the rest (NULL until training)
    Moments moments[NUM_PARAMS];       // of AdamW, of the elements that this rank holds
    MomentType moment_type;
    float* master[NUM_PARAMS];         // NULL: the parameter is the master
    bool has_master;
    uint8_t *wk[NUM_LINEARS + 1], *wt[NUM_LINEARS + 1];              // FP8 weights (L,OC,C), transposed (L,C,OC); of the head (Vp,C), (C,Vp), or NULL
    uint8_t *wk_scale[NUM_LINEARS + 1], *wt_scale[NUM_LINEARS + 1];  // their descales, a layer's after another's; NULL where a tensor has one
    Fp8Scaling scaling;
    Fp8Calibrator* calibrator;         // measures the operands of linear layers (--calibrate); NULL: nobody does
    Activations<floatX> acts;
    int* staging[2];                   // pinned: inputs, targets, order, start, token of a micro-batch on their way to the device; two, used in turn,
    cudaEvent_t staged[2];             // since the host fills one while the other may still be read
    int* h_count;                      // (V + 1), scratch of encoder_group_tokens
    uint64_t micro_steps_staged;
};

// The buffers of one layer for a micro-batch of N tokens: what a layer's forward fills and its backward reads.
template <class floatX>
struct LayerBuffers {
    floatX *res0, *res1, *res2;        // input of the fcproj before (layer 0: res1), inputs of ln1 and ln2
    floatX *ln1, *ln2, *qkv, *y, *h, *gelu;
    uint8_t *ln1_q, *ln2_q, *y_q, *gelu_q;   // FP8 operands kept for backward
    uint8_t *ln1_s, *ln2_s, *y_s, *gelu_s;   // their descales
    uint8_t *codes, *exponents;              // of h, qkv and y, kept in one byte an element
    float *mean1, *rstd1, *mean2, *rstd2, *lse;
};
template <class T> static T* slice(T* base, size_t index, size_t n) { return base ? base + index * n : NULL; }

// What training needs, or what evaluation does: FP8_ROLE_EVAL_X.
template <class floatX>
static LayerBuffers<floatX> gpt_layer(GPT<floatX>* g, int l, size_t N, Fp8Role role = FP8_ROLE_X) {
    Activations<floatX>* a = &g->acts;
    const size_t C = g->config.channels, NC = N * C, all = (size_t)g->B * g->T;
    const int ln = g->recompute < 2 ? 2 * l : 0, ln_next = g->recompute < 2 ? 1 : 0, gelu = g->recompute < 1 ? l : 0;  // recomputed tensors share one buffer
    const bool whole = g->recompute >= 3, packed = g->fp8_activations;
    const int inner = whole ? 0 : l, kept = whole || packed ? 0 : l, stats = whole ? 0 : 2 * l;
    LayerBuffers<floatX> b;
    b.res1 = slice(a->residual, whole ? l : 2 * l, NC);
    b.res2 = slice(a->residual, whole ? g->config.num_layers + 1 : 2 * l + 1, NC);
    b.res0 = l == 0 ? b.res1 : whole ? b.res2 : b.res1 - NC;
    b.ln1 = a->ln ? slice(a->ln, ln, NC) : a->lnf;
    b.ln2 = a->ln ? slice(a->ln, ln + ln_next, NC) : a->lnf;
    b.codes = slice(a->codes, l, 8 * all * C);
    b.exponents = slice(a->exponents, l, packed_exponents(all, C));
    // in sampling qkv is the key-value cache: whatever N, a layer has its place
    b.qkv = packed ? role == FP8_ROLE_EVAL_X ? (floatX*)b.codes : a->wide : a->cache && N <= (size_t)g->T ? slice(a->cache, l, QKV_STRIDE((size_t)g->T, C)) : slice(a->qkv, inner, QKV_STRIDE(all, C));
    b.y = packed ? a->wide + 3 * NC : slice(a->y, inner, NC);
    b.h = packed ? a->wide : slice(a->h, inner, 4 * NC);
    b.gelu = a->g ? slice(a->g, gelu, 4 * NC) : a->dwide;
    b.ln1_q = slice(a->ln_q, ln, NC);
    b.ln2_q = slice(a->ln_q, ln + ln_next, NC);
    b.y_q = slice(a->y_q, kept, NC);
    b.gelu_q = slice(a->g_q, gelu, 4 * NC);
    if (g->fp8) {
        const Fp8Granularity by = g->scaling.recipe->by_x;
        const size_t bytes = fp8_scale_bytes(by, g->config.channels, (int)N);
        b.ln1_s = slice(a->ln_s, ln, bytes);
        b.ln2_s = slice(a->ln_s, ln + ln_next, bytes);
        b.y_s = slice(a->y_s, kept, bytes);
        b.gelu_s = slice(a->g_s, gelu, fp8_scale_bytes(by, 4 * g->config.channels, (int)N));
    } else {
        b.ln1_s = b.ln2_s = b.y_s = b.gelu_s = NULL;
    }
    b.mean1 = slice(a->ln_mean, stats, N);
    b.rstd1 = slice(a->ln_rstd, stats, N);
    b.mean2 = slice(a->ln_mean, stats + 1, N);
    b.rstd2 = slice(a->ln_rstd, stats + 1, N);
    b.lse = slice(a->lse, kept, N * g->config.num_heads);
    return b;
}
// The input of the final layernorm, and where its statistics begin.
template <class floatX> static floatX* gpt_last_residual(GPT<floatX>* g, size_t N) { return slice(g->acts.residual, (g->recompute < 3 ? 2 : 1) * g->config.num_layers, N * g->config.channels); }
template <class floatX> static size_t gpt_last_statistics(GPT<floatX>* g, size_t N) { return (g->recompute < 3 ? 2 * (size_t)g->config.num_layers : 2) * N; }

// Thread blocks of the largest tensor that is quantized: what measuring noise needs scratch for.
template <class floatX>
static size_t gpt_noise_blocks(GPT<floatX>* g) {
    const int C = g->config.channels, N = g->B * g->T, Vp = g->config.padded_vocab_size;
    size_t most = max(fp8_quantize_blocks(N, 4 * C), fp8_quantize_blocks(4 * C, C));
    for (int i = 0; i < NUM_LINEARS; i++) { most = max(most, fp8_quantize_blocks(FP8_TILE, (int)(g->spec[linear_weight[i]].held / FP8_TILE))); }  // shards (gpt_gather_weights)
    return g->fp8_head ? max(most, max(fp8_quantize_blocks(g->head_rows, Vp), fp8_quantize_blocks(Vp, C))) : most;
}

// Keeps linear layers in BF16: "0,-1,fcproj,3.qkv,head" are layer 0, the last one, fcproj of all layers, qkv of layer 3, the head.
template <class floatX>
static void gpt_bf16_layers(GPT<floatX>* g, const char* list) {
    const int L = g->config.num_layers;
    const char* hint = "items are separated by commas: a layer's number (-1 is the last), qkv, attproj, fc, fcproj, or both as in 3.qkv; head";
    for (const char* p = list; *p;) {
        std::string item(p, strcspn(p, ","));
        p += item.size() + (p[item.size()] == ',');
        if (item == linear_names[LINEAR_HEAD]) {
            require(g->fp8_head, "leave it out: the head is in BF16 without --fp8-head", "--fp8-bf16-layers: the head is not in FP8");
            g->scaling.in_bf16[LINEAR_HEAD * L] = 1;
            continue;
        }
        const size_t dot = item.find('.');
        const bool number = !item.empty() && (isdigit((unsigned char)item[0]) || item[0] == '-');
        std::string name = dot != std::string::npos ? item.substr(dot + 1) : number ? "" : item;
        char* end = NULL;
        const long layer = number ? strtol(item.c_str(), &end, 10) : 0;
        require(!item.empty() && (!number || *end == 0 || *end == '.') && (number || dot == std::string::npos), hint, "--fp8-bf16-layers: '%.100s' is no linear layer", item.c_str());
        require(!number || (layer >= -L && layer < L), hint, "--fp8-bf16-layers: '%.100s': the model has layers 0 to %d", item.c_str(), L - 1);
        bool found = false;
        for (int i = 0; i < NUM_LINEARS; i++) {
            if (!name.empty() && name != linear_names[i]) { continue; }
            found = true;
            for (int l = 0; l < L; l++) { if (!number || l == (layer + L) % L) { g->scaling.in_bf16[i * L + l] = 1; } }
        }
        require(found, hint, "--fp8-bf16-layers: '%.100s' is no linear layer", item.c_str());
    }
}

// A parameter, a gradient, of layer l.
template <class floatX> static floatX* gpt_param(GPT<floatX>* g, ParamId p, int l) { return g->param[p] + (size_t)l * g->spec[p].stride; }
template <class floatX> static floatX* gpt_grad_weight(GPT<floatX>* g, ParamId p, int l) { return (floatX*)g->grad[p] + (size_t)l * g->spec[p].stride; }
template <class floatX> static float* gpt_grad_f32(GPT<floatX>* g, ParamId p, int l) { return (float*)g->grad[p] + (size_t)l * g->spec[p].stride; }
template <class floatX> static size_t gpt_grad_bytes(GPT<floatX>* g, int p) { return g->spec[p].layers * g->spec[p].stride * (g->spec[p].linear >= 0 ? sizeof(floatX) : sizeof(float)); }

// Elements of the largest weight of a linear layer, with its padding: what an exact sum over the ranks works on at once.
template <class floatX>
static size_t gpt_largest_linear(GPT<floatX>* g) {
    size_t largest = 0;
    for (int i = 0; i < NUM_LINEARS; i++) { if (largest < g->spec[linear_weight[i]].stride) { largest = g->spec[linear_weight[i]].stride; } }
    return largest;
}

#define LOGITS_BYTES (256u << 20)  // of one chunk of the head: large enough for full-speed products, small beside the activations

// Rows of logits alive at once, of N rows of Vp elements.
static size_t gpt_head_rows(size_t N, size_t Vp, size_t element_bytes) {
    size_t fit = LOGITS_BYTES / (Vp * element_bytes);
    return fit >= N ? N : fit < 128 ? (N < 128 ? N : 128) : fit / 128 * 128;
}

// Partial sums of squares: of what this rank alone has first (shards), then of what all have.
static int gpt_norm_blocks(const ParamSpec* spec, bool sharded) {
    int blocks = 0;
    for (int p = 0; p < NUM_PARAMS; p++) {
        if (spec[p].sharded != sharded) { continue; }
        blocks += sharded ? spec[p].layers * sum_squares_blocks(spec[p].held) : sum_squares_blocks(spec[p].layers * spec[p].stride);
    }
    return blocks;
}

template <class floatX>
static void gpt_init(GPT<floatX>* g, Device* dev, Comm* comm, const ModelHeader* config, bool fp8, const Fp8Settings* settings, bool has_master, int zero_stage) {
    memset((void*)g, 0, sizeof(*g));
    g->dev = dev;
    g->comm = comm;
    g->model = g->config = *config;
    g->config.channels = config->num_heads * gpt_padded_head_size(config);
    g->num_parameters = gpt_param_specs(g->spec, config);
    gpt_shard_specs(g->spec, comm->rank, comm->size, zero_stage);
    g->fp8 = fp8;
    g->fp8_fusion = true;
    const Fp8Recipe* recipe = fp8 ? settings->recipe : NULL;
    g->fp8_keep_t = !device_fp8_any_layout(dev) || (fp8 && recipe->by_x != FP8_BY_TENSOR);
    g->has_master = has_master && sizeof(floatX) == 2;
    for (int p = 0; p < NUM_PARAMS; p++) { g->param[p] = (floatX*)device_alloc(dev, MEM_PARAMETERS, g->spec[p].name, g->spec[p].layers * g->spec[p].stride * sizeof(floatX)); }
    if (fp8) {
        if (dev->counting) { g->scaling.recipe = recipe; } else { fp8_scaling_init(&g->scaling, settings, config->num_layers); }
        g->fp8_head = settings->head;
        for (int i = 0; i < NUM_LINEARS + g->fp8_head; i++) {
            const ParamSpec* s = &g->spec[linear_weight[i]];
            g->wk[i] = (uint8_t*)device_alloc(dev, MEM_FP8_WEIGHTS, linear_names[i], s->layers * s->stride);
            g->wt[i] = g->fp8_keep_t ? (uint8_t*)device_alloc(dev, MEM_FP8_WEIGHTS, linear_names[i], s->size) : NULL;
            const size_t k_bytes = fp8_scale_bytes(recipe->by_w, s->rows, s->cols), t_bytes = fp8_scale_bytes(recipe->by_w, s->cols, s->rows);
            g->wk_scale[i] = k_bytes ? (uint8_t*)device_alloc(dev, MEM_FP8_WEIGHTS, linear_names[i], s->layers * k_bytes) : NULL;
            g->wt_scale[i] = t_bytes ? (uint8_t*)device_alloc(dev, MEM_FP8_WEIGHTS, linear_names[i], s->layers * t_bytes) : NULL;
        }
    }
}

// The same for one rank.
template <class floatX>
static void gpt_init(GPT<floatX>* g, Device* dev, const ModelHeader* config, bool fp8, const Fp8Recipe* recipe, bool has_master) {
    Comm alone;
    comm_init(&alone, dev, 0, 1, NULL, false);
    const Fp8Settings settings = fp8 ? fp8_settings(recipe) : Fp8Settings();
    gpt_init(g, dev, &alone, config, fp8, &settings, has_master, 0);
    g->alone = alone;
    g->comm = &g->alone;
}

template <class floatX>
static void gpt_alloc_training(GPT<floatX>* g) {
    for (int p = 0; p < NUM_PARAMS; p++) {
        const char* name = g->spec[p].name;
        const size_t n = g->spec[p].layers * g->spec[p].state_stride, groups = g->moment_type == MOMENT_F8 ? g->spec[p].layers * moment_groups(g->spec[p].state_stride) : 0;
        g->grad[p] = device_alloc(g->dev, MEM_GRADIENTS, name, gpt_grad_bytes(g, p));
        auto zeros = [&](size_t bytes) {
            void* x = bytes ? device_alloc(g->dev, MEM_OPTIMIZER, name, bytes) : NULL;
            if (x) { cudaCheck(cudaMemset(x, 0, bytes)); }
            return x;
        };
        g->moments[p] = {zeros(n * moment_m_bytes(g->moment_type)), zeros(n * moment_v_bytes(g->moment_type)), (uint8_t*)zeros(groups), (uint8_t*)zeros(groups), g->spec[p].state_stride};
        g->master[p] = g->has_master ? (float*)device_alloc(g->dev, MEM_OPTIMIZER, name, n * sizeof(float)) : NULL;
    }
}

// Is attention done by the flash kernels?
template <class floatX> static bool gpt_flash(const GPT<floatX>* g) { return attention_is_flash(g->dev, dtype_of<floatX>(), g->config.channels / g->config.num_heads); }

template <class floatX>
static void gpt_alloc_activations(GPT<floatX>* g, int batch, int seq_len, int recompute) {
    const size_t B = batch, T = gpt_padded_seq_len(seq_len, g->fp8), N = B * T, L = g->config.num_layers, C = g->config.channels, NH = g->config.num_heads, Vp = g->config.padded_vocab_size;
    const int r = recompute;
    g->B = batch;
    g->T = (int)T;
    g->recompute = recompute;
    const size_t head_rows = gpt_head_rows(N, Vp, sizeof(floatX));
    g->head_rows = (int)head_rows;
    const size_t norm_blocks = gpt_norm_blocks(g->spec, true) + gpt_norm_blocks(g->spec, false);
    Activations<floatX>* a = &g->acts;
    const bool both = true, fp8 = g->fp8, plain = !g->fp8, head = g->fp8_head, quantized = g->fp8 && !g->fp8_wgrad_bf16, packed = g->fp8_activations, kept = r < 3 && !packed;
    const size_t attention_elements = CEIL_DIV(attention_scratch_bytes(gpt_flash(g), batch, (int)T, (int)NH), sizeof(floatX));
    auto class_of = [](bool saved) { return saved ? MEM_ACTIVATIONS : MEM_SCRATCH; };
    auto x_scales = [&](size_t outer, size_t inner) { return fp8 ? fp8_scale_bytes(g->scaling.recipe->by_x, (int)outer, (int)inner) : 0; };
    auto dy_scales = [&](size_t outer, size_t inner) { return fp8 ? fp8_scale_bytes(g->scaling.recipe->by_dy, (int)outer, (int)inner) : 0; };
#define ACT_ALLOC(name, type, elements, when, cls) a->name = (when) && (elements) > 0 ? (type*)device_alloc(g->dev, cls, #name, (elements) * sizeof(type)) : NULL;
    ACT_TABLE(ACT_ALLOC)
#undef ACT_ALLOC
    if (g->dev->counting) { return; }
    for (int i = 0; i < 2; i++) {
        cudaCheck(cudaMallocHost((void**)&g->staging[i], (5 * N + 1) * sizeof(int)));
        cudaCheck(cudaEventCreateWithFlags(&g->staged[i], cudaEventDisableTiming));
    }
    g->h_count = (int*)mallocCheck((g->config.vocab_size + 1) * sizeof(int));
}

// What a model would take of a device's memory, by class, to train B sequences of T tokens: the allocations above, only counted.
template <class floatX>
static void gpt_count_memory(size_t bytes[NUM_MEM_CLASSES], const Device* dev, const Comm* comm, const ModelHeader* config, bool fp8, const Fp8Settings* settings, bool has_master,
                             int zero_stage, MomentType moments, bool wgrad_bf16, bool fp8_activations, bool samples, int B, int T, int recompute) {
    Device* counter = new Device(*dev);
    Comm ranks = *comm;
    GPT<floatX>* g = new GPT<floatX>();
    counter->counting = true;
    memset(counter->allocated, 0, sizeof(counter->allocated));
    counter->allocated[MEM_WORKSPACE] = dev->workspace_bytes;
    ranks.dev = counter;
    gpt_init(g, counter, &ranks, config, fp8, settings, has_master, zero_stage);
    g->moment_type = moments;
    g->fp8_wgrad_bf16 = wgrad_bf16;
    g->fp8_activations = fp8_activations;
    g->samples = samples;
    gpt_alloc_training(g);
    gpt_alloc_activations(g, B, T, recompute);
    ranks.scratch_bytes = 0;
    comm_reserve(&ranks, gpt_largest_linear(g));
    memcpy(bytes, counter->allocated, sizeof(counter->allocated));
    delete g;
    delete counter;
}

template <class floatX>
static void gpt_free(GPT<floatX>* g) {
    for (int p = 0; p < NUM_PARAMS; p++) {
        cudaCheck(cudaFree(g->param[p]));
        cudaCheck(cudaFree(g->grad[p]));
        void* const moments[] = {g->moments[p].m, g->moments[p].v, g->moments[p].m_exponent, g->moments[p].v_exponent};
        for (void* x : moments) { cudaCheck(cudaFree(x)); }
        cudaCheck(cudaFree(g->master[p]));
    }
    if (g->fp8) {
        for (int i = 0; i <= NUM_LINEARS; i++) {
            void* const weights[] = {g->wk[i], g->wt[i], g->wk_scale[i], g->wt_scale[i]};
            for (void* x : weights) { cudaCheck(cudaFree(x)); }
        }
        fp8_scaling_free(&g->scaling);
    }
#define ACT_FREE(name, type, elements, when, cls) cudaCheck(cudaFree(g->acts.name));
    ACT_TABLE(ACT_FREE)
#undef ACT_FREE
    for (int i = 0; i < 2 && g->staging[i]; i++) {
        cudaCheck(cudaFreeHost(g->staging[i]));
        cudaCheck(cudaEventDestroy(g->staged[i]));
    }
    free(g->h_count);
    memset(g->dev->allocated, 0, sizeof(g->dev->allocated));
    g->dev->allocated[MEM_WORKSPACE] = g->dev->workspace_bytes;
    memset((void*)g, 0, sizeof(*g));
}

// ---------------------------------------------------------------------------- [C] parameters: initial values, load, save

#define COPY_CHUNK ((size_t)4 << 20)  // elements a host buffer holds while tensors go through it

// dst (n) floatX on the device = src (n) f32 on the host, rounded to nearest.
template <class floatX>
static void gpt_upload(floatX* dst, const float* src, size_t n) {
    std::vector<floatX> rounded(n);
    for (size_t i = 0; i < n; i++) { rounded[i] = from_float<floatX>(src[i]); }
    cudaCheck(cudaMemcpy(dst, rounded.data(), n * sizeof(floatX), cudaMemcpyHostToDevice));
}

// llm.c's initial values: MT19937 with the seed, wte's real rows, then wpe, then the four weights of each layer; LN weights 1, all else 0.
template <class floatX>
static void gpt_init_llmc(GPT<floatX>* g, uint32_t seed) {
    Mt19937 mt;
    mt19937_init(&mt, seed);
    const float residual_scale = 1.0f / sqrtf(2.0f * g->config.num_layers);
    std::vector<float> values;
    auto fill = [&](int p, int layer, size_t used) {  // used: elements of the model with random values; the rest (padding of the vocabulary) is 0
        const ParamSpec* s = &g->spec[p];
        values.assign(s->part, s->init < 0 ? (float)(-s->init - 1.0) : 0.0f);
        if (s->init > 0) { normal_fill(values.data(), used, 0.0f, (float)s->init * (s->residual ? residual_scale : 1.0f), &mt); }
        padding_expand(&s->shape, 0, s->part, values.data(), sizeof(float));
        gpt_upload(gpt_param(g, (ParamId)p, layer), values.data(), s->part);
    };
    for (int p = 0; p < NUM_PARAMS; p++) {
        if (g->spec[p].init < 0) { for (int l = 0; l < g->spec[p].layers; l++) { fill(p, l, 0); } }
    }
    fill(P_wte, 0, (size_t)g->model.vocab_size * g->model.channels);
    fill(P_wpe, 0, g->spec[P_wpe].real_part);
    for (int l = 0; l < g->config.num_layers; l++) {
        for (int i = 0; i < NUM_LINEARS; i++) { fill(linear_weight[i], l, g->spec[linear_weight[i]].real_part); }
    }
}

// The same distribution from a hash on the device: for benchmarks, where llm.c's generator would take longer than the measurement.
template <class floatX>
static void gpt_init_fast(GPT<floatX>* g, uint64_t seed) {
    std::vector<floatX> values;
    for (int p = 0; p < NUM_PARAMS; p++) {
        const ParamSpec* s = &g->spec[p];
        float std = s->init > 0 ? (float)s->init * (s->residual ? 1.0f / sqrtf(2.0f * g->config.num_layers) : 1.0f) : 0.0f;
        size_t used = p == P_wte ? (size_t)g->model.vocab_size * g->model.channels : s->real_part * s->layers;
        for (int l = 0; l < s->layers; l++) {  // noise by element of the tensor: layer after layer
            floatX* x = gpt_param(g, (ParamId)p, l);
            init_fast(x, s->init < 0 ? (float)(-s->init - 1.0) : 0.0f, std, ROUND_UP(s->real_part, (size_t)8), used - l * s->real_part, noise_key(seed, 0, l, NOISE_INIT, p), g->dev->stream);
            if (padded_shape_is_plain(&s->shape)) { continue; }
            values.resize(s->part);  // the elements lie one after the other: apart with them
            cudaCheck(cudaStreamSynchronize(g->dev->stream));
            cudaCheck(cudaMemcpy(values.data(), x, s->real_part * sizeof(floatX), cudaMemcpyDeviceToHost));
            padding_expand(&s->shape, 0, s->part, values.data(), sizeof(floatX));
            cudaCheck(cudaMemcpy(x, values.data(), s->part * sizeof(floatX), cudaMemcpyHostToDevice));
        }
    }
}

// Calls fn(tensor, layer, first element of the layer, elements) for pieces of all parameters that fit a bounded host buffer, in the order of the model file.
template <class F>
static void gpt_for_pieces(const ParamSpec* spec, F fn) {
    for (int p = 0; p < NUM_PARAMS; p++) {
        for (int l = 0; l < spec[p].layers; l++) {
            for (size_t at = 0; at < spec[p].part; at += COPY_CHUNK) {
                fn(p, l, at, spec[p].part - at < COPY_CHUNK ? spec[p].part - at : COPY_CHUNK);
                note_progress();
            }
        }
    }
}
// How many of the elements at .. at + n of a layer this rank holds; *begin: the first of them, counted from `at`; *i: the same in its shard.
static size_t gpt_held(const ParamSpec* s, size_t at, size_t n, size_t* begin, size_t* i) {
    const size_t first = at > s->first ? at : s->first, end = at + n < s->first + s->held ? at + n : s->first + s->held;
    if (first >= end) { return 0; }
    *begin = first - at;
    *i = first - s->first;
    return end - first;
}
// Copies what this rank holds of values (n) f32, elements at.. of layer l of tensor p, into the masters on the device.
static void gpt_put_master(const ParamSpec* s, float* master, int l, size_t at, const float* values, size_t n) {
    size_t begin = 0, i = 0, held = gpt_held(s, at, n, &begin, &i);
    if (held) { cudaCheck(cudaMemcpy(master + l * s->state_stride + i, values + begin, held * sizeof(float), cudaMemcpyHostToDevice)); }
}

// All parameters from an open model file of the same dimensions; its type may differ from ours. FP32 masters take the file's values unrounded.
template <class floatX>
static void gpt_load_model(GPT<floatX>* g, ModelFile* file) {
    FileError error;
    std::vector<float> wide(COPY_CHUNK);
    std::vector<bf16> narrow(COPY_CHUNK);
    gpt_for_pieces(g->spec, [&](int p, int l, size_t at, size_t n) {
        uint64_t first;
        const size_t real = param_in_files(&g->spec[p], l, at, n, &first);
        if (file->dtype == FILE_BF16) {
            fileCheck(model_file_read(file, narrow.data(), real, &error), &error);
            for (size_t i = 0; i < real; i++) { wide[i] = to_float(narrow[i]); }
        } else {
            fileCheck(model_file_read(file, wide.data(), real, &error), &error);
        }
        padding_expand(&g->spec[p].shape, at, n, wide.data(), sizeof(float));
        gpt_upload(gpt_param(g, (ParamId)p, l) + at, wide.data(), n);
        if (g->has_master) { gpt_put_master(&g->spec[p], g->master[p], l, at, wide.data(), n); }
    });
}

// The FP8 weight of a linear layer, and its slot.
template <class floatX>
static Fp8Operand gpt_weight_operand(GPT<floatX>* g, int l, int i) {
    const ParamSpec* w = &g->spec[linear_weight[i]];
    const Fp8Granularity by = g->scaling.recipe->by_w;
    return fp8_operand(&g->scaling, fp8_slot(&g->scaling, FP8_ROLE_W, l, i), g->wk[i] + l * w->stride, g->wt[i] ? g->wt[i] + l * w->part : NULL,
                       slice(g->wk_scale[i], l, fp8_scale_bytes(by, w->rows, w->cols)), slice(g->wt_scale[i], l, fp8_scale_bytes(by, w->cols, w->rows)));
}
template <class floatX>
static bool gpt_linear_fp8(const GPT<floatX>* g, int l, int i) { return g->fp8 && fp8_linear_on(&g->scaling, l, i); }

// Quantizes the weight of one linear layer; its amax was recorded, if the recipe needs that.
template <class floatX>
static void gpt_quantize_weight(GPT<floatX>* g, int l, int i) {
    if constexpr (sizeof(floatX) == 2) {
        const ParamSpec* w = &g->spec[linear_weight[i]];
        if (!gpt_linear_fp8(g, l, i)) { return; }
        fp8_quantize(&g->scaling, fp8_slot(&g->scaling, FP8_ROLE_W, l, i), gpt_weight_operand(g, l, i), gpt_param(g, linear_weight[i], l), w->rows, w->cols, NULL, NULL, false, g->dev->stream);
    }
}
// The same of a weight whose amax nobody recorded.
template <class floatX>
static void gpt_quantize_param(GPT<floatX>* g, int l, int i) {
    const int slot = fp8_slot(&g->scaling, FP8_ROLE_W, l, i);
    if (gpt_linear_fp8(g, l, i) && fp8_needs_amax(&g->scaling, slot)) {
        amax_reduce(g->scaling.amax + slot, gpt_param(g, linear_weight[i], l), g->spec[linear_weight[i]].part, g->dev->stream);
    }
    gpt_quantize_weight(g, l, i);
}
// FP8 weights from the parameters, which were set by other means than the optimizer, by copies on the default stream, which are waited for.
template <class floatX>
static void gpt_quantize_weights(GPT<floatX>* g) {
    cudaCheck(cudaDeviceSynchronize());
    if (!g->fp8) { return; }
    fp8_scaling_begin_weights(&g->scaling, g->dev->stream);
    for (int tensor = 0; tensor < fp8_tensors(&g->scaling); tensor++) { gpt_quantize_param(g, tensor % g->scaling.layers, tensor / g->scaling.layers); }
}
template <class floatX>
static void gpt_masters_from_params(GPT<floatX>* g) {
    if (!g->has_master) { return; }
    std::vector<floatX> narrow(COPY_CHUNK);
    std::vector<float> wide(COPY_CHUNK);
    cudaCheck(cudaStreamSynchronize(g->dev->stream));
    gpt_for_pieces(g->spec, [&](int p, int l, size_t at, size_t n) {
        cudaCheck(cudaMemcpy(narrow.data(), gpt_param(g, (ParamId)p, l) + at, n * sizeof(floatX), cudaMemcpyDeviceToHost));
        for (size_t i = 0; i < n; i++) { wide[i] = to_float(narrow[i]); }
        gpt_put_master(&g->spec[p], g->master[p], l, at, wide.data(), n);
    });
}

// ---------------------------------------------------------------------------- [D] forward

// Operands of linear layer i of layer l. float32 and bfloat16 read the tensors as they are; float8 quantizes them, or lets the kernel that makes them write
// the codes. These functions are all that forward and backward know about FP8.

// An FP8 operand as a product reads it.
template <class floatX>
static Operand gpt_fp8_operand(GPT<floatX>* g, int slot, Fp8Operand q, int rows, int cols) {
    return {q.k, q.t, q.k_scale, q.t_scale, fp8_slot_granularity(&g->scaling, slot), dtype_of_fp8(fp8_slot_format(&g->scaling, slot)), rows, cols};
}

// Where x is quantized to: codes and descales that backward needs into saved, the others into scratch. saved NULL: backward makes its own. again: within backward.
template <class floatX>
static Fp8Operand gpt_fp8_x(GPT<floatX>* g, Fp8Role role, int slot, uint8_t* saved, uint8_t* saved_scales, bool again) {
    const bool keeps_k = !g->fp8_keep_t && saved;  // which order backward reads
    return fp8_operand(&g->scaling, slot, keeps_k ? saved : again ? g->acts.again_k : g->acts.operand_k, keeps_k || role == FP8_ROLE_EVAL_X ? NULL : saved,
                       again ? g->acts.again_s : g->acts.k_scales, saved_scales);
}
// Is this operand written by the kernel that makes it?
template <class floatX>
static bool gpt_fuses(GPT<floatX>* g, Fp8Role role, int l, int i) {
    return g->fp8_fusion && gpt_linear_fp8(g, l, i) && fp8_fuses(&g->scaling, fp8_slot(&g->scaling, role, l, i), false);
}
// x (N,cols), whose amax was recorded if the recipe needs it: FP8 codes, or the tensor itself.
template <class floatX>
static Operand gpt_operand_x(GPT<floatX>* g, Fp8Role role, int l, int i, floatX* x, uint8_t* saved, uint8_t* saved_scales, int N, int cols, bool again) {
    if constexpr (sizeof(floatX) == 2) {
        if (gpt_linear_fp8(g, l, i)) {
            Fp8Scaling* s = &g->scaling;
            const int slot = fp8_slot(s, role, l, i);
            const Fp8Operand q = gpt_fp8_x(g, role, slot, saved, saved_scales, again);
            fp8_quantize(s, slot, q, x, N, cols, NULL, NULL, again, g->dev->stream);
            return gpt_fp8_operand(g, slot, q, N, cols);
        }
        if (g->calibrator && !again) { fp8_calibrator_measure(g->calibrator, role, l, i, x, N, cols, g->dev->stream); }
    }
    (void)role; (void)l; (void)i; (void)saved; (void)saved_scales; (void)again;
    return operand_plain(x, N, cols);
}
// Are this layer's weight gradients multiplied from BF16, by what backward makes again?
template <class floatX>
static bool gpt_plain_wgrad(GPT<floatX>* g, int l, int i) { return g->fp8 && (g->fp8_wgrad_bf16 || !fp8_linear_on(&g->scaling, l, i)); }
// The same in backward: what forward saved. again(slot, q, fuses): makes x again where a recompute level or a product in BF16 wants that: as codes into q with
// forward's scale if fuses, else as x; slot -1: there are no codes.
template <class floatX, class Again>
static Operand gpt_saved_x(GPT<floatX>* g, int l, int i, floatX* x, uint8_t* saved, uint8_t* saved_scales, int N, int cols, bool recomputed, Again again) {
    if constexpr (sizeof(floatX) == 2) {
        if (g->fp8 && !gpt_plain_wgrad(g, l, i)) {
            Fp8Scaling* s = &g->scaling;
            const int slot = fp8_slot(s, FP8_ROLE_X, l, i);
            const Fp8Operand q = fp8_operand(s, slot, g->fp8_keep_t ? NULL : saved, g->fp8_keep_t ? saved : NULL, NULL, saved_scales);
            const bool fuses = g->fp8_fusion && fp8_fuses(s, slot, true);
            if (recomputed) { again(slot, q, fuses); }
            if (recomputed && !fuses) { fp8_quantize(s, slot, q, x, N, cols, NULL, NULL, true, g->dev->stream); }
            return gpt_fp8_operand(g, slot, q, N, cols);
        }
    }
    (void)saved; (void)saved_scales;
    if (recomputed || gpt_plain_wgrad(g, l, i)) { again(-1, Fp8Operand(), false); }
    return operand_plain(x, N, cols);
}
template <class floatX>
static Operand gpt_operand_w(GPT<floatX>* g, int l, int i) {
    const ParamSpec* spec = &g->spec[linear_weight[i]];
    if (gpt_linear_fp8(g, l, i)) { return gpt_fp8_operand(g, fp8_slot(&g->scaling, FP8_ROLE_W, l, i), gpt_weight_operand(g, l, i), spec->rows, spec->cols); }
    return operand_plain(gpt_param(g, linear_weight[i], l), spec->rows, spec->cols);
}
// Where dY is quantized to.
template <class floatX>
static Fp8Operand gpt_fp8_dy(GPT<floatX>* g, int slot) {
    return fp8_operand(&g->scaling, slot, g->acts.operand_k, g->fp8_keep_t && !g->fp8_wgrad_bf16 ? g->acts.operand_t : NULL, g->acts.k_scales, g->acts.t_scales);
}
// dY (N,OC), whose amax was recorded if the recipe needs it; on the way the bias gradient += its column sums.
template <class floatX>
static Operand gpt_operand_dy(GPT<floatX>* g, int l, int i, floatX* dy, int N) {
    const int OC = g->spec[linear_weight[i]].rows;
    float* dbias = gpt_grad_f32(g, linear_bias[i], l);
    if constexpr (sizeof(floatX) == 2) {
        if (gpt_linear_fp8(g, l, i)) {
            Fp8Scaling* s = &g->scaling;
            const int slot = fp8_slot(s, FP8_ROLE_DY, l, i);
            const Fp8Operand q = gpt_fp8_dy(g, slot);
            fp8_quantize(s, slot, q, dy, N, OC, dbias, g->acts.partial, false, g->dev->stream);
            return gpt_fp8_operand(g, slot, q, N, OC);
        }
        if (g->calibrator) { fp8_calibrator_measure(g->calibrator, FP8_ROLE_DY, l, i, dy, N, OC, g->dev->stream); }
    }
    bias_backward(dbias, g->acts.partial, dy, N, OC, g->dev->stream);
    return operand_plain(dy, N, OC);
}
// What the weight gradient reads of dY: its FP8 codes, or the tensor itself.
template <class floatX>
static Operand gpt_wgrad_dy(GPT<floatX>* g, int l, int i, Operand dy, floatX* plain) { return gpt_plain_wgrad(g, l, i) ? operand_plain(plain, dy.rows, dy.cols) : dy; }
// Where a producer records the amax of the operand it makes; NULL if nobody needs that: without FP8, and where the quantize kernel takes it on the way.
template <class floatX>
static unsigned* gpt_amax(GPT<floatX>* g, Fp8Role role, int l, int i) {
    const int slot = g->fp8 ? fp8_slot(&g->scaling, role, l, i) : 0;
    return gpt_linear_fp8(g, l, i) && fp8_needs_amax(&g->scaling, slot) ? g->scaling.amax + slot : NULL;
}
// The same for the weights of a linear layer i, those of all layers: one after the other. Layers in BF16 do not mind.
template <class floatX>
static unsigned* gpt_weight_amax(GPT<floatX>* g, int i) {
    for (int l = 0; l < g->config.num_layers; l++) { if (gpt_amax(g, FP8_ROLE_W, l, i)) { return g->scaling.amax + fp8_slot(&g->scaling, FP8_ROLE_W, 0, i); } }
    return NULL;
}

// x of linear layer i, the layernorm of residual (N,C) = inp + branch (NULL: of inp), which goes into ln unless its codes are written at once; M rows, those from
// N on are garbage.
template <class floatX>
static Operand gpt_layernorm_x(GPT<floatX>* g, Fp8Role role, int l, int i, floatX* ln, float* mean, float* rstd, floatX* residual, floatX* inp, floatX* branch, uint8_t* saved,
                               uint8_t* saved_scales, int N, int M, bool again) {
    const int C = g->config.channels, width = g->model.channels;
    floatX *w = gpt_param(g, i == LINEAR_QKV ? P_ln1w : P_ln2w, l), *b = gpt_param(g, i == LINEAR_QKV ? P_ln1b : P_ln2b, l);
    uint8_t* kept = g->recompute < 2 ? saved : NULL;
    if constexpr (sizeof(floatX) == 2) {
        if (!again && gpt_fuses(g, role, l, i)) {
            const int slot = fp8_slot(&g->scaling, role, l, i);
            const Fp8Operand q = gpt_fp8_x(g, role, slot, kept, saved_scales, false);
            fp8_layernorm_forward(&g->scaling, slot, q, mean, rstd, residual, inp, branch, w, b, N, M, C, width, g->dev->stream);
            return gpt_fp8_operand(g, slot, q, M, C);
        }
    }
    layernorm_forward(ln, mean, rstd, residual, inp, branch, w, b, N, C, width, again ? (unsigned*)NULL : gpt_amax(g, role, l, i), g->dev->stream);
    return gpt_operand_x(g, role, l, i, ln, kept, saved_scales, M, C, again);
}
// The same in backward: the residual's sum and its statistics are there.
template <class floatX>
static Operand gpt_saved_layernorm_x(GPT<floatX>* g, int l, int i, floatX* ln, float* mean, float* rstd, floatX* residual, uint8_t* saved, uint8_t* saved_scales, int N) {
    const int C = g->config.channels;
    floatX *w = gpt_param(g, i == LINEAR_QKV ? P_ln1w : P_ln2w, l), *b = gpt_param(g, i == LINEAR_QKV ? P_ln1b : P_ln2b, l);
    return gpt_saved_x(g, l, i, ln, saved, saved_scales, N, C, g->recompute >= 2, [&](int slot, Fp8Operand q, bool fuses) {
        if constexpr (sizeof(floatX) == 2) {
            if (fuses) { fp8_layernorm_again(&g->scaling, slot, q, mean, rstd, residual, w, b, N, C, g->dev->stream); return; }
        }
        layernorm_forward(ln, mean, rstd, residual, residual, (floatX*)NULL, w, b, N, C, g->model.channels, (unsigned*)NULL, g->dev->stream);
    });
}
// x of fcproj: gelu(h), h (M,4C); N of its rows are real.
template <class floatX>
static Operand gpt_gelu_x(GPT<floatX>* g, Fp8Role role, int l, floatX* gelu, floatX* h, uint8_t* saved, uint8_t* saved_scales, int N, int M) {
    const int cols = 4 * g->config.channels;
    uint8_t* kept = g->recompute < 1 ? saved : NULL;
    if constexpr (sizeof(floatX) == 2) {
        if (gpt_fuses(g, role, l, LINEAR_FCPROJ)) {
            const int slot = fp8_slot(&g->scaling, role, l, LINEAR_FCPROJ);
            const Fp8Operand q = gpt_fp8_x(g, role, slot, kept, saved_scales, false);
            fp8_gelu_forward(&g->scaling, slot, q, h, M, cols, false, g->dev->stream);
            return gpt_fp8_operand(g, slot, q, M, cols);
        }
    }
    gelu_forward(gelu, h, (size_t)N * cols, gpt_amax(g, role, l, LINEAR_FCPROJ), g->dev->stream);
    return gpt_operand_x(g, role, l, LINEAR_FCPROJ, gelu, kept, saved_scales, M, cols, false);
}
template <class floatX>
static Operand gpt_saved_gelu_x(GPT<floatX>* g, int l, floatX* gelu, floatX* h, uint8_t* saved, uint8_t* saved_scales, int N) {
    const int cols = 4 * g->config.channels;
    return gpt_saved_x(g, l, LINEAR_FCPROJ, gelu, saved, saved_scales, N, cols, g->recompute >= 1, [&](int slot, Fp8Operand q, bool fuses) {
        if constexpr (sizeof(floatX) == 2) {
            if (fuses) { fp8_gelu_forward(&g->scaling, slot, q, h, N, cols, true, g->dev->stream); return; }
        }
        (void)slot; (void)q; (void)fuses;
        gelu_forward(gelu, h, (size_t)N * cols, (unsigned*)NULL, g->dev->stream);
    });
}
// dY of fc: dgelu (N,4C), the gradient of gelu(h), becomes that of h, in place unless its codes are written at once.
template <class floatX>
static Operand gpt_gelu_dy(GPT<floatX>* g, int l, floatX* dgelu, floatX* h, int N) {
    const int cols = 4 * g->config.channels;
    if constexpr (sizeof(floatX) == 2) {
        if (gpt_fuses(g, FP8_ROLE_DY, l, LINEAR_FC) && !gpt_plain_wgrad(g, l, LINEAR_FC)) {
            const int slot = fp8_slot(&g->scaling, FP8_ROLE_DY, l, LINEAR_FC);
            const Fp8Operand q = gpt_fp8_dy(g, slot);
            fp8_gelu_backward(&g->scaling, slot, q, gpt_grad_f32(g, P_fcb, l), g->acts.partial, h, dgelu, N, cols, g->dev->stream);
            return gpt_fp8_operand(g, slot, q, N, cols);
        }
    }
    if (g->gelu_fusion < 2) { gelu_backward(dgelu, h, dgelu, (size_t)N * cols, gpt_amax(g, FP8_ROLE_DY, l, LINEAR_FC), g->dev->stream); }
    return gpt_operand_dy(g, l, LINEAR_FC, dgelu, N);
}
// Backward of the layernorm of x (N,C), whose output's gradient is in acts.dx; the residual's gradient is then dY of linear layer i of layer l, which is returned
// (l < 0: of none). pw, pb: that layernorm, of layer lw.
template <class floatX>
static Operand gpt_layernorm_dy(GPT<floatX>* g, int l, int i, ParamId pw, ParamId pb, int lw, floatX* x, float* mean, float* rstd, int N, bool accumulate) {
    Activations<floatX>* a = &g->acts;
    const int C = g->config.channels, width = g->model.channels;
    float *dw = gpt_grad_f32(g, pw, lw), *db = gpt_grad_f32(g, pb, lw);
    if constexpr (sizeof(floatX) == 2) {
        if (l >= 0 && gpt_fuses(g, FP8_ROLE_DY, l, i)) {
            const int slot = fp8_slot(&g->scaling, FP8_ROLE_DY, l, i);
            const Fp8Operand q = gpt_fp8_dy(g, slot);
            fp8_layernorm_backward(&g->scaling, slot, q, gpt_grad_f32(g, linear_bias[i], l), a->dresidual, dw, db, a->partial, a->ln_means, a->dx, x, gpt_param(g, pw, lw), mean, rstd, N, C, width,
                                   accumulate, g->dev->stream);
            return gpt_fp8_operand(g, slot, q, N, C);
        }
    }
    layernorm_backward(a->dresidual, dw, db, a->partial, a->dx, x, gpt_param(g, pw, lw), mean, rstd, N, C, width, accumulate,
                       l >= 0 ? gpt_amax(g, FP8_ROLE_DY, l, i) : (unsigned*)NULL, g->dev->stream);
    return l >= 0 ? gpt_operand_dy(g, l, i, a->dresidual, N) : operand_plain(a->dresidual, N, C);
}
// What of a layer is kept for backward in one byte an element: h, or qkv and y; into it after use, and back before. Backward reads what comes back.
template <class floatX>
static void gpt_pack(GPT<floatX>* g, const LayerBuffers<floatX>& b, bool of_h, bool back) {
    if constexpr (sizeof(floatX) == 2) {
        const size_t N = (size_t)g->B * g->T;
        const int C = g->config.channels;
        uint8_t *codes = b.codes, *exponents = b.exponents;
        const struct { floatX* x; int cols; bool wanted; } tensors[] = {{b.h, 4 * C, of_h}, {b.qkv, 3 * C, !of_h}, {b.y, C, !of_h}};
        for (auto& t : tensors) {
            if (t.wanted && back) { fp8_unpack(t.x, codes, exponents, N, t.cols, g->dev->stream); }
            if (t.wanted && !back) { fp8_pack(codes, exponents, t.x, N, t.cols, g->dev->stream); }
            codes += N * t.cols;
            exponents += fp8_pack_exponents(N, t.cols);
        }
    }
    (void)g; (void)b; (void)of_h; (void)back;
}

// x of attproj in backward: y as forward saved it, or as it comes back, together with qkv.
template <class floatX>
static Operand gpt_saved_y(GPT<floatX>* g, int l, const LayerBuffers<floatX>& b, int N) {
    const int C = g->config.channels;
    if (g->fp8_activations) { gpt_pack(g, b, false, true); }
    return gpt_saved_x(g, l, LINEAR_ATTPROJ, b.y, b.y_q, b.y_s, N, C, g->fp8_activations, [&](int slot, Fp8Operand q, bool fuses) {
        if constexpr (sizeof(floatX) == 2) {
            if (fuses) { fp8_quantize(&g->scaling, slot, q, b.y, N, C, NULL, NULL, true, g->dev->stream); }
        }
        (void)slot; (void)q; (void)fuses;
    });
}
// Where attention records the amax of what it writes, n elements; NULL if nobody needs it. A library's product is read once more for that.
template <class floatX>
static unsigned* gpt_attention_amax(GPT<floatX>* g, Fp8Role role, int l, int i, size_t n) {
    unsigned* amax = gpt_amax(g, role, l, i);
    if (amax && !gpt_flash(g)) { fp8_count_traffic(&g->scaling, fp8_slot(&g->scaling, role, l, i), n, 1); }
    return amax;
}
template <class floatX> static float gpt_attention_scale(const GPT<floatX>* g) { return attention_scale(g->model.channels / g->model.num_heads); }
// qkv's output gradient: the gradient of attention's input, from dy, that of its output; left in dqkv, if anyone reads it there.
template <class floatX>
static Operand gpt_attention_dy(GPT<floatX>* g, int l, floatX* dqkv, floatX* dy, const LayerBuffers<floatX>& b, int B, int T) {
    Device* dev = g->dev;
    Activations<floatX>* a = &g->acts;
    const int C = g->config.channels, NH = g->config.num_heads, N = B * T;
    if constexpr (sizeof(floatX) == 2) {
        const int slot = g->fp8 ? fp8_slot(&g->scaling, FP8_ROLE_DY, l, LINEAR_QKV) : 0;
        if (gpt_fuses(g, FP8_ROLE_DY, l, LINEAR_QKV) && !gpt_plain_wgrad(g, l, LINEAR_QKV) && fp8_attention_fuses(dev, &g->scaling, slot, B, T, C, NH)) {
            const Fp8Operand q = gpt_fp8_dy(g, slot);
            fp8_attention_backward(dev, &g->scaling, slot, q, gpt_grad_f32(g, P_qkvb, l), a->partial, dy, b.qkv, b.y, b.lse, a->logits, B, T, C, NH, gpt_attention_scale(g));
            return gpt_fp8_operand(g, slot, q, N, 3 * C);
        }
    }
    attention_backward(dev, dqkv, dy, b.qkv, b.y, b.lse, a->logits, B, T, C, NH, gpt_attention_scale(g), gpt_attention_amax(g, FP8_ROLE_DY, l, LINEAR_QKV, (size_t)N * 3 * C));
    return gpt_operand_dy(g, l, LINEAR_QKV, dqkv, N);
}
// attproj's input in forward: y = attention over (B,T) of b.qkv; past > 0: of one token, whose q, k and v lie in acts.dwide.
template <class floatX>
static Operand gpt_attention_x(GPT<floatX>* g, Fp8Role role, int l, const LayerBuffers<floatX>& b, int B, int T, int past, int M, bool again) {
    Device* dev = g->dev;
    const int C = g->config.channels, NH = g->config.num_heads;
    uint8_t* kept = again || (g->recompute < 3 && !g->fp8_activations) ? b.y_q : NULL;  // y.t; else backward makes it
    if constexpr (sizeof(floatX) == 2) {
        const int slot = g->fp8 ? fp8_slot(&g->scaling, role, l, LINEAR_ATTPROJ) : 0;
        if (!past && !again && gpt_fuses(g, role, l, LINEAR_ATTPROJ) && fp8_attention_fuses(dev, &g->scaling, slot, B, T, C, NH)) {
            const Fp8Operand q = gpt_fp8_x(g, role, slot, kept, b.y_s, false);
            fp8_attention_forward(dev, &g->scaling, slot, q, b.y, b.lse, b.qkv, B, T, C, NH, gpt_attention_scale(g));
            return gpt_fp8_operand(g, slot, q, M, C);
        }
    }
    if (past) {
        cudaCheck(cudaMemcpyAsync(b.qkv + 3 * C * (size_t)past, g->acts.dwide, 3 * C * sizeof(floatX), cudaMemcpyDeviceToDevice, dev->stream));
        attention_decode(b.y, b.qkv, past, C, NH, gpt_attention_scale(g), dev->stream);
        if (unsigned* amax = gpt_amax(g, role, l, LINEAR_ATTPROJ)) { amax_reduce(amax, b.y, (size_t)C, dev->stream); }
    } else {
        unsigned* amax = again ? NULL : gpt_attention_amax(g, role, l, LINEAR_ATTPROJ, (size_t)B * T * C);
        attention_forward(dev, b.y, b.lse, b.qkv, g->acts.logits, B, T, C, NH, gpt_attention_scale(g), amax);
    }
    return gpt_operand_x(g, role, l, LINEAR_ATTPROJ, b.y, kept, b.y_s, M, C, again);
}
template <class floatX>
static bool gpt_fast_accum(GPT<floatX>* g, Pass pass) {
    const Fp8Settings* r = &g->scaling.settings;
    return g->fp8 && (pass == PASS_FPROP ? r->fast_fprop : pass == PASS_DGRAD ? r->fast_dgrad : r->fast_wgrad);
}

// The products of the head on a chunk of rows, tied with wte: logits = lnf wte^T; dlnf = dlogits wte; dwte (f32) += dlogits^T lnf.
static GemmShape head_shape(Pass pass, int rows, int C, int Vp, DType x) {
    GemmShape s;
    if (pass == PASS_FPROP) {
        s = gemm_shape(rows, Vp, C, x, x, x);
        if (rows == 1) { s.align = 16; }  // sampling reads one row anywhere
    } else if (pass == PASS_DGRAD) {
        s = gemm_shape(rows, C, Vp, x, x, x);
        s.b_t = 1; s.ldb = C;
    } else {
        s = gemm_shape(Vp, C, rows, x, x, DTYPE_F32);
        s.a_t = 1; s.lda = Vp; s.b_t = 1; s.ldb = C; s.accumulate = 1;
    }
    return s;
}
static const char* const head_names[NUM_PASSES] = {"gemm head fprop", "gemm head dgrad", "gemm head wgrad"};

// The same as the operands of this precision make it; fp8: whether they are FP8.
template <class floatX>
static GemmShape gpt_head_shape(GPT<floatX>* g, Pass pass, int rows, bool fp8) {
    const int C = g->config.channels, Vp = g->config.padded_vocab_size;
    const DType X = dtype_of<floatX>();
    if (!fp8) { return head_shape(pass, rows, C, Vp, X); }
    const Fp8Settings* r = &g->scaling.settings;
    GemmShape s = linear_shape(pass, rows, C, Vp, dtype_of_fp8(r->x), dtype_of_fp8(r->w), dtype_of_fp8(r->dy), pass == PASS_WGRAD ? DTYPE_F32 : X, g->fp8_keep_t, gpt_fast_accum(g, pass),
                               {r->recipe->by_x, r->recipe->by_w, r->recipe->by_dy});
    s.bias = 0;
    return s;
}
// Plans the head's products of a pass on a chunk of rows, in FP8 and in the plain type, as far as they are wanted.
template <class floatX>
static void gpt_plan_head(GPT<floatX>* g, Pass pass, int rows) {
    const bool fp8 = gpt_linear_fp8(g, 0, LINEAR_HEAD) && !(pass == PASS_WGRAD && g->fp8_wgrad_bf16);
    for (int k = 0; k < 2; k++) {
        if (!(k ? fp8 : !fp8 || g->fp8_guarded)) { continue; }
        GemmShape s = gpt_head_shape(g, pass, rows, k);
        gemm_plan_or_fail(g->dev, &s, head_names[pass]);
    }
}
// An input of the head's products, lnf or dlogits: x (rows,cols) as it is, or its FP8 codes into scratch of head_rows rows, k, then t. Recipes with one scale a
// tensor scale each chunk by its own largest value, that of the first `live` rows; or from a history, into which the largest of all chunks goes.
template <class floatX>
static Operand gpt_head_operand(GPT<floatX>* g, Fp8Role role, floatX* x, uint8_t* codes, uint8_t* scales, int rows, int cols, int live) {
    if constexpr (sizeof(floatX) == 2) {
        if (gpt_linear_fp8(g, 0, LINEAR_HEAD)) {
            Fp8Scaling* s = &g->scaling;
            const int slot = fp8_slot(s, role, 0, LINEAR_HEAD);
            const bool t = g->fp8_keep_t && !g->fp8_wgrad_bf16 && role != FP8_ROLE_EVAL_X;
            const size_t most = g->head_rows;
            const Fp8Operand q = fp8_operand(s, slot, codes, t ? codes + most * cols : NULL, scales, scales + fp8_scale_bytes(fp8_slot_granularity(s, slot), (int)most, cols));
            if (fp8_needs_amax(s, slot)) {
                cudaCheck(cudaMemsetAsync(s->amax + slot, 0, sizeof(unsigned), g->dev->stream));
                amax_reduce(s->amax + slot, x, (size_t)live * cols, g->dev->stream);
            }
            fp8_quantize(s, slot, q, x, rows, cols, NULL, NULL, false, g->dev->stream);
            return gpt_fp8_operand(g, slot, q, rows, cols);
        }
    }
    (void)role; (void)codes; (void)scales; (void)live;
    return operand_plain(x, rows, cols);
}
// D = a product of the head on a chunk of rows: fprop of x and w, dgrad of dlogits and w, wgrad of dlogits and x.
template <class floatX>
static void gpt_head_gemm(GPT<floatX>* g, const char* name, Pass pass, void* D, Operand a, Operand b, int rows) {
    GemmShape s = gpt_head_shape(g, pass, rows, dtype_is_fp8(a.dtype));
    const bool a_t = pass == PASS_WGRAD && a.t, b_t = pass != PASS_FPROP && b.t;
    gemm(g->dev, name, &s, D, a_t ? a.t : a.k, b_t ? b.t : b.k, a_t ? a.t_scale : a.k_scale, b_t ? b.t_scale : b.k_scale, NULL);
}

// FP8 products take no fewer rows than this: one token is padded with rows that nobody reads.
#define DECODE_ROWS 16
template <class floatX> static int gpt_decode_rows(GPT<floatX>* g) { return g->fp8 ? DECODE_ROWS : 1; }
template <class floatX> static int gpt_head_decode_rows(GPT<floatX>* g) { return g->fp8_head ? DECODE_ROWS : 1; }

// A layer from res1, or from what it is the sum of, to h: before it qkv, y and res2. again: in backward, where res1 is there and nothing is recorded.
template <class floatX>
static void gpt_forward_to_h(GPT<floatX>* g, const LayerBuffers<floatX>& b, Fp8Role role, int l, int B, int T, int past, bool again) {
    Device* dev = g->dev;
    Activations<floatX>* a = &g->acts;
    const int N = B * T;
    const int M = past ? gpt_decode_rows(g) : N;  // rows of the products and of the buffers; rows from N on are garbage
    const DType X = dtype_of<floatX>();
    const bool fast = gpt_fast_accum(g, PASS_FPROP), first = l == 0 || again, packs = g->fp8_activations && role == FP8_ROLE_X;
    // attention: res2 = res1 + attproj(attention(qkv(ln1(res1)))); the sum itself is formed by the layernorm that reads it
    Operand x = gpt_layernorm_x(g, role, l, LINEAR_QKV, b.ln1, b.mean1, b.rstd1, b.res1, first ? b.res1 : b.res0, first ? (floatX*)NULL : a->dx, b.ln1_q, b.ln1_s, N, M, again);
    linear_forward(dev, past ? a->dwide : b.qkv, X, x, gpt_operand_w(g, l, LINEAR_QKV), gpt_param(g, P_qkvb, l), fast);
    x = gpt_attention_x(g, role, l, b, B, T, past, M, again);
    if (packs) { gpt_pack(g, b, false, false); }
    linear_forward(dev, a->dx, X, x, gpt_operand_w(g, l, LINEAR_ATTPROJ), gpt_param(g, P_attprojb, l), fast);

    // MLP: res1 of the next layer = res2 + fcproj(gelu(fc(ln2(res2))))
    x = gpt_layernorm_x(g, role, l, LINEAR_FC, b.ln2, b.mean2, b.rstd2, b.res2, b.res1, a->dx, b.ln2_q, b.ln2_s, N, M, again);
    if (g->gelu_fusion >= 1) {
        linear_forward_gelu(dev, b.gelu, b.h, x, gpt_operand_w(g, l, LINEAR_FC), gpt_param(g, P_fcb, l));
    } else {
        linear_forward(dev, b.h, X, x, gpt_operand_w(g, l, LINEAR_FC), gpt_param(g, P_fcb, l), fast);
    }
    if (packs) { gpt_pack(g, b, true, false); }
}

// Everything up to the final layernorm, for acts.inputs (B,T). role FP8_ROLE_X: training, keeps what backward needs; FP8_ROLE_EVAL_X: evaluation.
// past > 0: sampling, B = T = 1: one token at position `past` of a sequence whose earlier tokens went through here before. qkv of a layer is its key-value
// cache: row p holds q, k and v of token p. acts.dx is the branch that is not added yet.
template <class floatX>
static void gpt_forward_trunk(GPT<floatX>* g, int B, int T, int past, Fp8Role role) {
    Device* dev = g->dev;
    Activations<floatX>* a = &g->acts;
    const int N = B * T, L = g->config.num_layers, C = g->config.channels;
    const int M = past ? gpt_decode_rows(g) : N;
    if (g->fp8) { fp8_scaling_begin(&g->scaling, role, dev->stream); }
    encoder_forward(a->residual, a->inputs, g->param[P_wte], g->param[P_wpe] + (size_t)past * C, B, T, C, dev->stream);
    floatX* res2 = NULL;
    for (int l = 0; l < L; l++) {
        LayerBuffers<floatX> b = gpt_layer(g, l, M, role);
        gpt_forward_to_h(g, b, role, l, B, T, past, false);
        const Operand x = g->gelu_fusion >= 1 ? operand_plain(b.gelu, M, 4 * C) : gpt_gelu_x(g, role, l, b.gelu, b.h, b.gelu_q, b.gelu_s, N, M);
        linear_forward(dev, a->dx, dtype_of<floatX>(), x, gpt_operand_w(g, l, LINEAR_FCPROJ), gpt_param(g, P_fcprojb, l), gpt_fast_accum(g, PASS_FPROP));
        res2 = b.res2;
    }
    const size_t at = gpt_last_statistics(g, M);
    layernorm_forward(a->lnf, a->ln_mean + at, a->ln_rstd + at, gpt_last_residual(g, M), res2, a->dx, g->param[P_lnfw], g->param[P_lnfb], N, C, g->model.channels,
                      (unsigned*)NULL, dev->stream);
}

// The head by chunks of rows: logits, loss and, if dloss > 0, their gradients at once, so that logits never exist for more rows than a chunk.
template <class floatX>
static void gpt_head(GPT<floatX>* g, int N, float dloss) {
    Device* dev = g->dev;
    Activations<floatX>* a = &g->acts;
    const int C = g->config.channels, V = g->config.vocab_size, Vp = g->config.padded_vocab_size;
    const Operand w = gpt_operand_w(g, 0, LINEAR_HEAD);
    for (int row = 0; row < N; row += g->head_rows) {
        int rows = min(g->head_rows, N - row);
        floatX* lnf = a->lnf + (size_t)row * C;
        const Operand x = gpt_head_operand(g, dloss > 0.0f ? FP8_ROLE_X : FP8_ROLE_EVAL_X, lnf, a->head_x, a->head_xs, rows, C, rows);
        gpt_head_gemm(g, head_names[PASS_FPROP], PASS_FPROP, a->logits, x, w, rows);
        fused_classifier(a->logits, a->losses + row, a->targets + row, dloss, rows, V, Vp, dloss > 0.0f, dev->stream);
        if (dloss > 0.0f) {
            const bool plain = gpt_plain_wgrad(g, 0, LINEAR_HEAD);
            const Operand dy = gpt_head_operand(g, FP8_ROLE_DY, a->logits, a->head_dy, a->head_dys, rows, Vp, rows);
            gpt_head_gemm(g, head_names[PASS_DGRAD], PASS_DGRAD, a->dx + (size_t)row * C, dy, w, rows);
            gpt_head_gemm(g, head_names[PASS_WGRAD], PASS_WGRAD, g->grad[P_wte], plain ? operand_plain(a->logits, rows, Vp) : dy, plain ? operand_plain(lnf, rows, C) : x, rows);
        }
    }
}

// The shape of one pass of linear layer i on N tokens, as the operands of this precision make it; l: the layer whose FP8 operands they are, -1: they are plain.
template <class floatX>
static GemmShape gpt_linear_shape(GPT<floatX>* g, Pass pass, int i, int N, int l) {
    const ParamSpec* spec = &g->spec[linear_weight[i]];
    const DType X = dtype_of<floatX>();
    if ((g->gelu_fusion >= 1 && pass == PASS_FPROP && i == LINEAR_FC) || (g->gelu_fusion >= 2 && pass == PASS_DGRAD && i == LINEAR_FCPROJ)) {
        return linear_gelu_shape(pass, N, spec->cols, spec->rows, X);
    }
    if (l < 0) { return linear_shape(pass, N, spec->cols, spec->rows, X, X, X, X, false, false); }
    const Fp8Recipe* r = g->scaling.recipe;
    auto type = [&](Fp8Role role) { return dtype_of_fp8(fp8_slot_format(&g->scaling, fp8_slot(&g->scaling, role, l, i))); };
    return linear_shape(pass, N, spec->cols, spec->rows, type(FP8_ROLE_X), type(FP8_ROLE_W), type(FP8_ROLE_DY), X, g->fp8_keep_t, gpt_fast_accum(g, pass), {r->by_x, r->by_w, r->by_dy});
}

// Plans one pass of linear layer i on N tokens, in FP8 and in the plain type, as far as a layer has it or the guard may want it.
template <class floatX>
static void gpt_plan_linear(GPT<floatX>* g, Pass pass, int i, int N, const char* name) {
    bool plain = g->fp8_guarded;
    auto plan = [&](int l) {
        const GemmShape s = gpt_linear_shape(g, pass, i, N, l);
        gemm_plan_or_fail(g->dev, &s, name);
    };
    for (int l = 0; l < g->config.num_layers; l++) {  // formats may differ between layers
        if (gpt_linear_fp8(g, l, i) && !(pass == PASS_WGRAD && g->fp8_wgrad_bf16)) { plan(l); } else { plain = true; }
    }
    if (plain) { plan(-1); }
}

// Plans every product of a training step, so that what the library refuses is said before training starts.
template <class floatX>
static void gpt_plan(GPT<floatX>* g) {
    Device* dev = g->dev;
    const int B = g->B, T = g->T, N = B * T, C = g->config.channels, NH = g->config.num_heads, hs = C / NH;
    const DType X = dtype_of<floatX>();
    for (int i = 0; i < NUM_LINEARS; i++) {
        for (int pass = 0; pass < NUM_PASSES; pass++) {
            char name[64];
            snprintf(name, sizeof(name), "%s %s", linear_names[i], pass_names[pass]);
            gpt_plan_linear(g, (Pass)pass, i, N, name);
        }
    }
    for (int pass = 0; pass < NUM_PASSES; pass++) {
        gpt_plan_head(g, (Pass)pass, g->head_rows);
        if (N % g->head_rows) { gpt_plan_head(g, (Pass)pass, N % g->head_rows); }
    }
    int group = attention_group(NH, T);
    for (int rest = 0; rest < (gpt_flash(g) ? 0 : 2); rest++) {
        int heads = rest ? NH % group : group;
        if (!heads) { continue; }
        const GemmShape shapes[] = {
            attention_scores_shape(X, heads, T, hs, 3 * C, 3 * C), attention_scores_shape(X, heads, T, hs, C, 3 * C),
            attention_apply_shape(X, heads, T, hs, false, 3 * C, C), attention_apply_shape(X, heads, T, hs, true, C, 3 * C),
            attention_apply_shape(X, heads, T, hs, false, 3 * C, 3 * C), attention_apply_shape(X, heads, T, hs, true, 3 * C, 3 * C)};
        for (const GemmShape& each : shapes) { gemm_plan_or_fail(dev, &each, "gemm attention"); }
    }
}

// What is in the context already goes through at once, padded to one of a few lengths, so that there are few shapes to plan.
static int sample_padded_length(int context, int T) { return min(T, ROUND_UP(context, T < 256 ? 16 : 64)); }

// How many of n tokens are the context of the next one: all, or once they are more than T, the rest of a window that slid by half.
static int sample_context(size_t n, int T) { return n <= (size_t)T ? (int)n : (int)(T / 2 + (n - T - 1) % (T - T / 2) + 1); }

// Plans the products of sampling after `start` tokens, until there are `end`, in a window of T <= g->T: a first pass over the context, passes over the half
// that is kept when it slides, and a token at a time between them.
template <class floatX>
static void gpt_plan_sampling(GPT<floatX>* g, int T, size_t start, size_t end) {
    const int C = g->config.channels, NH = g->config.num_heads;
    const DType X = dtype_of<floatX>();
    GemmShape s;
    gpt_plan_head(g, PASS_FPROP, gpt_head_decode_rows(g));
    const int passes[3] = {gpt_decode_rows(g), sample_padded_length(sample_context(start, T), g->T), end > (size_t)T ? sample_padded_length(T / 2 + 1, g->T) : 0};
    for (int pass = 0; pass < 3; pass++) {
        const int rows = passes[pass];
        if (!rows) { continue; }
        for (int i = 0; i < NUM_LINEARS; i++) { gpt_plan_linear(g, PASS_FPROP, i, rows, linear_names[i]); }
        for (int heads : {attention_group(NH, rows), NH % attention_group(NH, rows)}) {
            if (!heads || pass == 0 || gpt_flash(g)) { continue; }  // attention_decode has no products of the library either
            s = attention_scores_shape(X, heads, rows, C / NH, 3 * C, 3 * C);
            gemm_plan_or_fail(g->dev, &s, "gemm attention");
            s = attention_apply_shape(X, heads, rows, C / NH, false, 3 * C, C);
            gemm_plan_or_fail(g->dev, &s, "gemm attention");
        }
    }
}

// ---------------------------------------------------------------------------- [E] backward

// Sums the gradients of layer l (-1: of what belongs to no layer) over the ranks, on the communication stream: all of them, or with ZeRO-1 each rank its
// shards.
template <class floatX>
static void gpt_reduce_gradients(GPT<floatX>* g, int l) {
    Comm* comm = g->comm;
    if (comm->size == 1) { return; }
    comm_fork(comm);
    for (int exact = 0; exact < 2; exact++) {
        if (!exact) { comm_group_begin(comm); }
        for (int p = 0; p < NUM_PARAMS; p++) {
            const ParamSpec* s = &g->spec[p];
            const bool low = s->linear >= 0 && sizeof(floatX) == 2, per_layer = s->layers > 1 || s->linear >= 0 || (p >= P_ln1w && p <= P_fcprojb);
            if (per_layer != (l >= 0) || (low && comm->exact) != exact) { continue; }
            const DType type = low ? DTYPE_BF16 : DTYPE_F32;
            void* x = low ? (void*)gpt_grad_weight(g, (ParamId)p, per_layer ? l : 0) : (void*)gpt_grad_f32(g, (ParamId)p, per_layer ? l : 0);
            if (exact) {
                comm_reduce_scatter_exact(comm, COMM_GRADIENTS, (bf16*)x, s->shard);
                if (!s->sharded) { comm_all_gather(comm, COMM_GRADIENTS, x, s->shard, type); }
            } else if (s->sharded) {
                comm_reduce_scatter(comm, COMM_GRADIENTS, x, s->shard, type);
            } else {
                comm_all_reduce(comm, COMM_GRADIENTS, x, s->part, type);
            }
        }
        if (!exact) { comm_group_end(comm); }
    }
    comm_end(comm);
}

// Gradients of all parameters += those of the micro-batch in acts.inputs, after gpt_forward_trunk and gpt_head (which left dlnf in acts.dx). last: of the
// optimizer step; a layer's gradients then go to the other ranks while the layers below are at work.
template <class floatX>
static void gpt_backward(GPT<floatX>* g, int B, int T, int groups, bool last) {
    Device* dev = g->dev;
    Activations<floatX>* a = &g->acts;
    const int N = B * T, L = g->config.num_layers, C = g->config.channels, NH = g->config.num_heads;
    const DType X = dtype_of<floatX>();
    const bool fast_d = gpt_fast_accum(g, PASS_DGRAD), fast_w = gpt_fast_accum(g, PASS_WGRAD);
    floatX *dres = a->dresidual, *dx = a->dx, *dwide = a->dwide;
    const size_t at = gpt_last_statistics(g, N);
    Operand dy = gpt_layernorm_dy(g, L - 1, LINEAR_FCPROJ, P_lnfw, P_lnfb, 0, gpt_last_residual(g, N), a->ln_mean + at, a->ln_rstd + at, N, false);
    for (int l = L - 1; l >= 0; l--) {
        LayerBuffers<floatX> b = gpt_layer(g, l, N);
        if (g->recompute >= 3) { gpt_forward_to_h(g, b, FP8_ROLE_X, l, B, T, 0, true); }
        if (g->fp8_activations) { gpt_pack(g, b, true, true); }
        // MLP: dY of fcproj is the residual's gradient; x of fcproj may lie in dwide until its gradient does
        linear_wgrad(dev, gpt_grad_weight(g, P_fcprojw, l), X, gpt_wgrad_dy(g, l, LINEAR_FCPROJ, dy, dres),
                     gpt_saved_gelu_x(g, l, b.gelu, b.h, b.gelu_q, b.gelu_s, N), fast_w);
        if (g->gelu_fusion >= 2) {
            linear_dgrad_gelu(dev, dwide, b.h, dy, gpt_operand_w(g, l, LINEAR_FCPROJ));
        } else {
            linear_dgrad(dev, dwide, X, dy, gpt_operand_w(g, l, LINEAR_FCPROJ), fast_d);
        }
        dy = gpt_gelu_dy(g, l, dwide, b.h, N);
        linear_dgrad(dev, dx, X, dy, gpt_operand_w(g, l, LINEAR_FC), fast_d);
        linear_wgrad(dev, gpt_grad_weight(g, P_fcw, l), X, gpt_wgrad_dy(g, l, LINEAR_FC, dy, dwide),
                     gpt_saved_layernorm_x(g, l, LINEAR_FC, b.ln2, b.mean2, b.rstd2, b.res2, b.ln2_q, b.ln2_s, N), fast_w);
        dy = gpt_layernorm_dy(g, l, LINEAR_ATTPROJ, P_ln2w, P_ln2b, l, b.res2, b.mean2, b.rstd2, N, true);

        // attention
        linear_dgrad(dev, dx, X, dy, gpt_operand_w(g, l, LINEAR_ATTPROJ), fast_d);
        linear_wgrad(dev, gpt_grad_weight(g, P_attprojw, l), X, gpt_wgrad_dy(g, l, LINEAR_ATTPROJ, dy, dres), gpt_saved_y(g, l, b, N), fast_w);
        if (g->fp8_activations) { attention_forward(dev, b.y, b.lse, b.qkv, a->logits, B, T, C, NH, gpt_attention_scale(g)); }  // probabilities and y that belong to qkv as it came back
        dy = gpt_attention_dy(g, l, dwide, dx, b, B, T);
        linear_dgrad(dev, dx, X, dy, gpt_operand_w(g, l, LINEAR_QKV), fast_d);
        linear_wgrad(dev, gpt_grad_weight(g, P_qkvw, l), X, gpt_wgrad_dy(g, l, LINEAR_QKV, dy, dwide),
                     gpt_saved_layernorm_x(g, l, LINEAR_QKV, b.ln1, b.mean1, b.rstd1, b.res1, b.ln1_q, b.ln1_s, N), fast_w);
        dy = gpt_layernorm_dy(g, l - 1, LINEAR_FCPROJ, P_ln1w, P_ln1b, l, b.res1, b.mean1, b.rstd1, N, true);
        if (last) { gpt_reduce_gradients(g, l); }
    }
    encoder_backward(gpt_grad_f32(g, P_wte, 0), gpt_grad_f32(g, P_wpe, 0), dres, a->group_order, a->group_start, a->group_token, groups, B, T, C, dev->stream);
    if (last) {
        gpt_reduce_gradients(g, -1);
        comm_join(g->comm);
    }
}

// One micro-step of the accum that this rank does in an optimizer step of `tokens` in all: inputs, targets (B,T) on the host, T padded (g->T); a target may be
// NO_TARGET. Gradients and losses accumulate; micro-step 0 clears them.
template <class floatX>
static void gpt_micro_step(GPT<floatX>* g, const int* inputs, const int* targets, int B, int T, int micro_step, int accum, uint64_t tokens) {
    Activations<floatX>* a = &g->acts;
    cudaStream_t stream = g->dev->stream;
    const int N = B * T;
    if (micro_step == 0) {
        for (int p = 0; p < NUM_PARAMS; p++) { cudaCheck(cudaMemsetAsync(g->grad[p], 0, gpt_grad_bytes(g, p), stream)); }
        cudaCheck(cudaMemsetAsync(a->losses, 0, N * sizeof(float), stream));
        if (g->fp8) { fp8_scaling_begin_step(&g->scaling, stream); }
    }
    const int slot = g->micro_steps_staged++ % 2;
    int *h_inputs = g->staging[slot], *h_targets = h_inputs + N, *h_order = h_targets + N, *h_start = h_order + N, *h_token = h_start + N + 1;
    cudaCheck(cudaEventSynchronize(g->staged[slot]));
    memcpy(h_inputs, inputs, N * sizeof(int));
    memcpy(h_targets, targets, N * sizeof(int));
    int groups = encoder_group_tokens(h_order, h_start, h_token, g->h_count, inputs, N, g->config.vocab_size);
    cudaCheck(cudaMemcpyAsync(a->inputs, h_inputs, N * sizeof(int), cudaMemcpyHostToDevice, stream));
    cudaCheck(cudaMemcpyAsync(a->targets, h_targets, N * sizeof(int), cudaMemcpyHostToDevice, stream));
    cudaCheck(cudaMemcpyAsync(a->group_order, h_order, N * sizeof(int), cudaMemcpyHostToDevice, stream));
    cudaCheck(cudaMemcpyAsync(a->group_start, h_start, (groups + 1) * sizeof(int), cudaMemcpyHostToDevice, stream));
    cudaCheck(cudaMemcpyAsync(a->group_token, h_token, groups * sizeof(int), cudaMemcpyHostToDevice, stream));
    cudaCheck(cudaEventRecord(g->staged[slot], stream));
    gpt_forward_trunk(g, B, T, 0, FP8_ROLE_X);
    if (g->fp8) { fp8_scaling_begin(&g->scaling, FP8_ROLE_DY, stream); }
    gpt_head(g, N, 1.0f / (float)tokens);
    gpt_backward(g, B, T, groups, micro_step == accum - 1);
}

// ---------------------------------------------------------------------------- [F] optimizer

// Mean loss of the optimizer step of `tokens` over all ranks and global gradient norm; N: rows of a micro-step. wishes: of this rank, to stop and to save, 0 or 1; then how many ranks have
// them; NULL: none. operands: how many FP8 operands of this step hold a NaN or an inf. Waits for the device.
template <class floatX>
static void gpt_loss_and_norm(GPT<floatX>* g, int N, uint64_t tokens, float* loss, float* norm, float* wishes = NULL, int* operands = NULL) {
    Activations<floatX>* a = &g->acts;
    cudaStream_t stream = g->dev->stream;
    float* partial = a->norm_partial;
    auto add = [&](int p, int l, size_t at, size_t n) {
        if (g->spec[p].linear >= 0) { sum_squares(partial, gpt_grad_weight(g, (ParamId)p, l) + at, n, stream); }
        else { sum_squares(partial, gpt_grad_f32(g, (ParamId)p, l) + at, n, stream); }
        partial += sum_squares_blocks(n);
    };
    for (int p = 0; p < NUM_PARAMS; p++) {
        const ParamSpec* s = &g->spec[p];
        if (s->sharded && s->held) { for (int l = 0; l < s->layers; l++) { add(p, l, s->first, s->held); } }
    }
    const int shards = (int)(partial - a->norm_partial);
    for (int p = 0; p < NUM_PARAMS; p++) { if (!g->spec[p].sharded) { add(p, 0, 0, g->spec[p].layers * g->spec[p].stride); } }  // padding is 0
    const float none[2] = {0.0f, 0.0f};
    cudaCheck(cudaMemcpyAsync(a->scalars + SCALAR_STOP, wishes ? wishes : none, sizeof(none), cudaMemcpyHostToDevice, stream));
    if (g->fp8) { fp8_count_nonfinite(&g->scaling, a->scalars + SCALAR_OPERANDS, stream); } else { cudaCheck(cudaMemsetAsync(a->scalars + SCALAR_OPERANDS, 0, sizeof(float), stream)); }
    sum_all(a->scalars + SCALAR_LOSS, a->losses, N, stream);
    sum_all(a->scalars + SCALAR_SHARDS, a->norm_partial, shards, stream);
    sum_all(a->scalars + SCALAR_REST, a->norm_partial + shards, (int)(partial - a->norm_partial) - shards, stream);
    comm_fork(g->comm);
    comm_all_reduce(g->comm, COMM_SCALARS, a->scalars, SCALAR_REST, DTYPE_F32);
    comm_end(g->comm);
    comm_join(g->comm);
    float h[NUM_SCALARS];
    cudaCheck(cudaMemcpyAsync(h, a->scalars, sizeof(h), cudaMemcpyDeviceToHost, stream));
    cudaCheck(cudaStreamSynchronize(stream));
    *loss = h[SCALAR_LOSS] / (float)tokens;
    *norm = sqrtf(h[SCALAR_SHARDS] + h[SCALAR_REST]);
    if (wishes) { wishes[0] = h[SCALAR_STOP]; wishes[1] = h[SCALAR_SAVE]; }
    if (operands) { *operands = (int)h[SCALAR_OPERANDS]; }
}

// Does a weight come from the other ranks as FP8 codes? With one scale a tensor they do not depend on the order, nor on where the shards begin.
template <class floatX>
static bool gpt_travels_as_codes(GPT<floatX>* g, int p, int l) {
    const ParamSpec* s = &g->spec[p];
    return s->sharded && s->linear >= 0 && gpt_linear_fp8(g, l, s->linear) && g->scaling.recipe->by_w == FP8_BY_TENSOR;
}

// After an update of shards: all ranks get the new weights, FP8 weights as codes, one byte a parameter, where that is possible; a scale from the amax is that of
// the largest element over all ranks then (R4).
template <class floatX>
static void gpt_gather_weights(GPT<floatX>* g) {
    Comm* comm = g->comm;
    const DType X = dtype_of<floatX>();
    Fp8Scaling* s = &g->scaling;
    cudaStream_t stream = g->dev->stream;
    if (g->fp8 && s->recipe->by_w == FP8_BY_TENSOR) {
        if (!s->settings.history) {
            comm_fork(comm);
            comm_all_reduce_max(comm, COMM_SCALES, s->amax + fp8_slot(s, FP8_ROLE_W, 0, 0), (size_t)s->layers * NUM_LINEARS);
            comm_end(comm);
            comm_join(comm);
        }
        if constexpr (sizeof(floatX) == 2) {
            for (int i = 0; i < NUM_LINEARS; i++) {
                const ParamSpec* w = &g->spec[linear_weight[i]];
                const bool none = w->held == 0;  // then a piece of anything, so that the scale is set here too
                for (int l = 0; l < s->layers; l++) {  // a shard is any piece of the matrix: as 16 rows it is quantized in order
                    if (!gpt_linear_fp8(g, l, i)) { continue; }
                    const int slot = fp8_slot(s, FP8_ROLE_W, l, i);
                    const Fp8Operand q = fp8_operand(s, slot, none ? g->acts.operand_k : g->wk[i] + l * w->stride + w->first, NULL, NULL, NULL);
                    fp8_quantize(s, slot, q, gpt_param(g, linear_weight[i], l) + (none ? 0 : w->first), FP8_TILE, (int)(none ? FP8_TILE : w->held / FP8_TILE), NULL, NULL, false, stream);
                }
            }
        }
    }
    comm_fork(comm);
    comm_group_begin(comm);
    for (int p = 0; p < NUM_PARAMS; p++) {
        const ParamSpec* w = &g->spec[p];
        if (!w->sharded) { continue; }
        for (int l = 0; l < w->layers; l++) {
            if (gpt_travels_as_codes(g, p, l)) { comm_all_gather(comm, COMM_WEIGHTS, g->wk[w->linear] + l * w->stride, w->shard, DTYPE_E4M3); }
            else { comm_all_gather(comm, COMM_WEIGHTS, gpt_param(g, (ParamId)p, l), w->shard, X); }
        }
    }
    comm_group_end(comm);
    comm_end(comm);
    comm_join(comm);
    for (int i = 0; g->fp8 && g->fp8_keep_t && i < NUM_LINEARS; i++) {
        const ParamSpec* w = &g->spec[linear_weight[i]];
        for (int l = 0; l < s->layers; l++) {
            if (gpt_travels_as_codes(g, linear_weight[i], l)) { fp8_transpose(g->wt[i] + l * w->part, g->wk[i] + l * w->stride, w->rows, w->cols, stream); }
        }
    }
}

// Does AdamW write the FP8 codes of this weight, which is all this rank's?
template <class floatX>
static bool gpt_fuses_update(GPT<floatX>* g, int p, int l) {
    const ParamSpec* s = &g->spec[p];
    return g->fp8_fusion && !s->sharded && gpt_linear_fp8(g, l, s->linear) && fp8_adamw_fuses(&g->scaling, fp8_slot(&g->scaling, FP8_ROLE_W, l, s->linear), g->moment_type);
}

// One AdamW update of all tensors, then the FP8 weights from the new values. step: completed updates (0-based index of this one).
template <class floatX>
static void gpt_update(GPT<floatX>* g, const Options* o, float learning_rate, float norm, uint64_t step) {
    cudaStream_t stream = g->dev->stream;
    AdamWParams adam;
    adam.learning_rate = learning_rate;
    adam.beta1 = o->beta1;
    adam.beta2 = o->beta2;
    adam.eps = o->adam_eps;
    adam.beta1_correction = 1.0f - powf(o->beta1, (float)(step + 1));
    adam.beta2_correction = 1.0f - powf(o->beta2, (float)(step + 1));
    adam.grad_scale = o->grad_clip > 0.0f && norm > o->grad_clip ? o->grad_clip / norm : 1.0f;
    if (g->fp8) {
        Fp8Scaling* f = &g->scaling;
        if (f->settings.history && g->comm->size > 1) {  // R4: histories are of all ranks
            comm_fork(g->comm);
            comm_all_reduce_max(g->comm, COMM_SCALES, f->amax_step, fp8_training_slots(f));
            comm_end(g->comm);
            comm_join(g->comm);
        }
        fp8_scaling_end_step(f, stream);
        fp8_scaling_begin_weights(f, stream);
    }
    for (int p = 0; p < NUM_PARAMS; p++) {
        const ParamSpec* s = &g->spec[p];
        adam.weight_decay = s->decay ? o->weight_decay : 0.0f;
        adam.noise_key = noise_key(o->seed, step, 0, NOISE_PARAMETERS, p);
        adam.m_key = noise_key(o->seed, step, 0, NOISE_M, p);
        adam.v_key = noise_key(o->seed, step, 0, NOISE_V, p);
        AdamWLayout layout = {s->part, s->stride, s->first, s->held, s->state_stride, s->layers};
        bool fused = false;
        for (int l = 0; s->linear >= 0 && l < s->layers; l++) { fused |= gpt_fuses_update(g, p, l); }
        if (fused) {
            if constexpr (sizeof(floatX) == 2) {
                for (int l = 0; l < s->layers; l++) {
                    if (gpt_fuses_update(g, p, l)) {
                        fp8_adamw_update(&g->scaling, fp8_slot(&g->scaling, FP8_ROLE_W, l, s->linear), gpt_weight_operand(g, l, s->linear), gpt_param(g, (ParamId)p, l),
                                         slice(g->master[p], l, s->state_stride), g->moment_type, g->moments[p], gpt_grad_weight(g, (ParamId)p, l), l, s->rows, s->cols, adam, stream);
                    } else {
                        layout.layers = 1;
                        layout.first_layer = l;
                        adamw_update_moments(g->param[p], g->master[p], g->moment_type, g->moments[p], (floatX*)g->grad[p], layout, gpt_weight_amax(g, s->linear), adam, stream);
                    }
                }
            }
        } else if (s->linear >= 0) {
            adamw_update_moments(g->param[p], g->master[p], g->moment_type, g->moments[p], (floatX*)g->grad[p], layout, gpt_weight_amax(g, s->linear), adam, stream);
        } else {
            adamw_update_moments(g->param[p], g->master[p], g->moment_type, g->moments[p], (float*)g->grad[p], layout, (unsigned*)NULL, adam, stream);
        }
    }
    if (g->spec[P_wte].sharded) { gpt_gather_weights(g); }
    for (int i = 0; g->fp8 && i < NUM_LINEARS; i++) {
        for (int l = 0; l < g->scaling.layers; l++) {
            const int p = linear_weight[i];
            if (!gpt_travels_as_codes(g, p, l) && !gpt_fuses_update(g, p, l)) { gpt_quantize_weight(g, l, i); }
        }
    }
    if (g->fp8_head) { gpt_quantize_param(g, 0, LINEAR_HEAD); }  // of the gathered parameters, on every rank
}

// ---------------------------------------------------------------------------- [G] a run and its ranks

// What a run is besides its model: everything main and its steps share.
typedef struct {
    Options opt;
    Device dev;
    Ranks ranks;               // this process among those of the job
    Control* control;          // how they watch each other, and one process its files
    Comm comm;
    DataLoader train, val;
    EvalLoader eval;
    GpuInfo gpu_info;
    bool has_gpu_info;
    Tokenizer tokenizer;
    std::string tokenizer_path;
    std::vector<int> sample_start;
    Logger logger;
    LearningRate schedule;
    OutlierDetector loss_outliers, norm_outliers;
    bool llmc_state;           // the checkpoint to resume from is llm.c's
    int order_ranks;           // processes of the run whose data order goes on
    bool has_eval;             // the questions of --eval-data are there and wanted
    int accum;                 // micro-steps an optimizer step
    uint64_t total_tokens;     // tokens an optimizer step
    int num_steps;             // of the whole run
    int step;                  // completed optimizer steps
    uint64_t position;         // sequences of the training order consumed so far
    int resumed_step;          // -1: fresh start
    int folder_lock;           // descriptor that keeps other runs out of the output folder, -1: none
    int nonfinite_in_a_row;
    double ms_first, ms_sum;   // of the first step of this process, of the later ones
    int ms_count;
    float ema_tokens_per_second;
    int ema_count;
    double eta_printed_ms;
    int exit_code;
    bool told_slow;
    std::string fp8_log;       // path of fp8.jsonl
    bool warned_fp8_log;
    std::vector<int> guard_until;  // [linear * layers + layer], as in_bf16: the step at which the guard takes it back into FP8, 0: it was not moved
    Goodput goodput;           // where the wall time went, over all starts
    double began_ms;           // when the process began
    bool stop, save;           // a rank was told to end; --save-every-minutes is over
    int began_step;            // of this process
    std::vector<int> damaged;  // steps whose checkpoints could not be read back at the start
    double saved_ms;           // when the last checkpoint was written, or the run began
    std::vector<int> inputs, targets;  // (B,T) of a micro-step, T padded
} Run;

static double unix_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}
static double clock_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e3 + t.tv_nsec * 1e-6;
}

// The signal that asked this process to end, 0: none. The first one lets it finish its step and save; another one, more than a second later, ends it at once.
static volatile sig_atomic_t* run_signal_flag(void) {
    static volatile sig_atomic_t flag = 0;
    return &flag;
}
static int run_signal(void) { return (int)*run_signal_flag(); }
static void run_on_signal(int signal_number) {
    static double first;  // launchers may say the same twice: slurm's scancel to the tasks, and by the batch script
    if (!*run_signal_flag()) {
        first = clock_ms();
        *run_signal_flag() = signal_number;
    } else if (clock_ms() - first > 1000) { _exit(128 + signal_number); }
}
#define EXIT_SAVED 75  // ended by a signal, with a checkpoint: start again with --resume (EX_TEMPFAIL of sysexits.h)

static void run_claim(void* job, int exit_code) { control_claim((Control*)job, exit_code); }
// Before the ranks meet, all of them find the same fault in the same command line: rank 0 says so, and its launcher ends the others meanwhile.
static void run_claim_early(void*, int) {
    for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "RANK", "SLURM_PROCID"}) {
        const char* rank = getenv(name);
        if (rank && atoi(rank) > 0) { usleep(1000000); return; }
    }
}
static void run_announce(void* job, int exit_code) { control_fail((Control*)job, exit_code); }
#ifdef GPT_WITH_MPI
#define BUILD_HAS_MPI true
static bool run_mpi_broadcast(void* data, int bytes) { return MPI_Bcast(data, bytes, MPI_BYTE, 0, MPI_COMM_WORLD) == MPI_SUCCESS; }
#else
#define BUILD_HAS_MPI false
#endif
static void run_progress(void* job) { control_progress((Control*)job); }
static bool run_ask_comm(void* comm, char ill[CONTROL_ILL_MAX]) { return comm_is_well((Comm*)comm, ill, CONTROL_ILL_MAX); }

// What this build is: a digest of the program's own file, "unknown" where the system does not show it. 16 hexadecimal digits.
static std::string run_build_digest(void) {
    FileError error;
    InputFile file;
    char text[32] = "unknown";
    if (!input_file_open(&file, "/proc/self/exe", &error)) { return text; }
    std::vector<char> all(file.size);
    if (input_file_read(&file, all.data(), all.size(), &error)) { snprintf(text, sizeof(text), "%016llx", (unsigned long long)xxh64(all.data(), all.size(), 0)); }
    input_file_close(&file);
    return text;
}

// All ranks must train the same: ends the program with the first option that differs and who gave it how.
static void run_agree_on_options(Run* run) {
    const Options* o = &run->opt;
    std::string all;
    for (int i = 0; i < OPTION_COUNT; i++) { if (i != OPTION_INDEX_process_rank) { all += option_text(o, &option_specs()[i]) + "\n"; } }
    std::vector<uint64_t> digests(run->ranks.size);
    const uint64_t digest = xxh64(all.data(), all.size(), 0);
    control_all_gather(run->control, "options", &digest, sizeof(digest), digests.data(), 0);
    bool equal = true;
    for (uint64_t each : digests) { equal = equal && each == digest; }
    for (int i = 0; !equal && i < OPTION_COUNT; i++) {  // every rank knows that they differ: now one by one
        std::string name = option_long_name(&option_specs()[i]);
        if (i != OPTION_INDEX_process_rank) { control_agree(run->control, name.substr(0, CONTROL_NAME_MAX - 1).c_str(), option_text(o, &option_specs()[i]).c_str(), 0); }
    }
    require(equal, "start all processes by one command", "the processes were started with other options");
}

// Finds this process among those of the job and meets the others. Only rank 0 prints to stdout from here on.
static void run_meet(Run* run) {
    const Options* o = &run->opt;
    Ranks* r = &run->ranks;
    FileError error;
    const RanksContact contacts[] = {RANKS_MPI, RANKS_TCP, RANKS_FILE};  // in the order of OPT_NCCL_CHOICES
    RanksOptions ro = {options_is_set(o, "nccl_init") ? contacts[o->nccl_init] : RANKS_AUTO, options_is_set(o, "num_processes") ? o->num_processes : 0,
                       options_is_set(o, "process_rank") ? o->process_rank : -1, o->gpus_per_node, o->server_ip, o->server_port, o->fs_path, BUILD_HAS_MPI};
    fileCheck(ranks_init(r, (const char* const*)environ, &ro, &error), &error);
    if (r->note[0] && r->rank == 0) { fprintf(stderr, "note: %s\n", r->note); }
    error_context()->claim = NULL;
#ifndef COMM_WITH_NCCL
    if (r->size == 1) { printf("Multi-GPU support is disabled. Using a single GPU.\n"); }
#endif
    if (r->contact == RANKS_TCP && r->local_size < r->size && r->rank == 0 && !getenv("GPT_JOB_TOKEN")) {
        fprintf(stderr, "WARNING: processes of several machines meet over TCP without a secret: who reaches port %d can guess what lets a process in\nHINT:  set GPT_JOB_TOKEN to the same random "
                "word on all of them\n", r->port);
    }
    if (r->size > 1) { error_context()->rank = r->rank; }
    if (r->rank > 0 && !freopen("/dev/null", "w", stdout)) { fail("", "cannot open /dev/null: %s", strerror(errno)); }
#if defined(GPT_CPU_DEVICE) && defined(_OPENMP)
    if (r->size > 1 && !getenv("OMP_NUM_THREADS")) { omp_set_num_threads(omp_get_num_procs() > r->local_size ? omp_get_num_procs() / r->local_size : 1); }
#endif
    ControlConfig config;
    memset(&config, 0, sizeof(config));
    config.ranks = r;
    const std::string identity = "llm.fp8, control protocol 2, build " + (r->size > 1 ? run_build_digest() : "");
    config.identity = identity.c_str();
    config.secret = getenv("GPT_JOB_TOKEN");
    config.join_seconds = o->join_seconds;
    config.watchdog_seconds = o->watchdog_seconds;
    config.exit_code = 1;
#ifdef GPT_WITH_MPI
    if (r->contact == RANKS_MPI) {
        int provided, mpi_rank, mpi_size;
        MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &provided);
        MPI_Comm_rank(MPI_COMM_WORLD, &mpi_rank);
        MPI_Comm_size(MPI_COMM_WORLD, &mpi_size);
        fileCheck(ranks_check_mpi(r, mpi_rank, mpi_size, &error), &error);
        config.broadcast = run_mpi_broadcast;
    }
#endif
    run->control = control_start(&config, &error);
    if (!run->control && !error.message[0]) { _exit(1); }  // another rank said why
    fileCheck(run->control != NULL, &error);
    error_context()->job = run->control;
    error_context()->claim = run_claim;
    error_context()->announce = run_announce;
    error_context()->progress = run_progress;
    if (r->size > 1) { run_agree_on_options(run); }
}

// The ranks' collectives, once each has its device.
static void run_open_comm(Run* run) {
    char id[COMM_ID_BYTES] = {0};
    const bool exact = run->opt.grad_reduce == OPT_REDUCE_FLOAT32;
    if (run->ranks.size > 1) {
        run->comm.size = 1;  // until it is whole
        if (run->ranks.rank == 0) { comm_make_id(&run->comm, id); }
        control_broadcast(run->control, "nccl id", id, sizeof(id), 0);
        control_note_wait(run->control, "joining NCCL", -1);
    }
    comm_init(&run->comm, &run->dev, run->ranks.rank, run->ranks.size, id, exact);
    control_watch_health(run->control, run_ask_comm, &run->comm);
    control_note(run->control, "starting", -1);
}

// values (n) := sums over the ranks, added in their order.
static void run_sum(Run* run, const char* name, double* values, int n) {
    if (run->ranks.size == 1) { return; }
    std::vector<double> all((size_t)run->ranks.size * n);
    control_all_gather(run->control, name, values, n * (int)sizeof(double), all.data(), 0);
    for (int i = 0; i < n; i++) {
        values[i] = 0.0;
        for (int r = 0; r < run->ranks.size; r++) { values[i] += all[(size_t)r * n + i]; }
    }
}
// The first rank on which it did not work, -1: it did on all. Any thread may ask, by a name of its own.
static int ranks_first_failed(Control* control, int size, const char* name, bool ok) {
    if (size == 1) { return ok ? -1 : 0; }
    std::vector<char> all(size);
    const char mine = ok;
    control_all_gather(control, name, &mine, 1, all.data(), 0);
    for (int r = 0; r < size; r++) { if (!all[r]) { return r; } }
    return -1;
}
static bool ranks_all_ok(Control* control, int size, const char* name, bool ok) { return ranks_first_failed(control, size, name, ok) < 0; }
static void run_barrier(Run* run, const char* name) { control_barrier(run->control, name, 0); }
static void run_note(Run* run, const char* op, bool waits) {
    if (waits && run->ranks.size > 1) { control_note_wait(run->control, op, run->step); } else { control_note(run->control, op, run->step); }
}
static void run_note_disk(Run* run, const char* op) { control_note_disk(run->control, op, run->step); }

// Was a rank told to end? The others hear of it within half a second.
static bool run_told_to_end(Run* run) {
    if (run_signal()) { control_wish(run->control); }
    return control_wished(run->control);
}

#define FOLDER_SECONDS 10.0  // a network file system may show a new file a little later
// Ends the program if a rank does not see rank 0's output folder: a word of rank 0's in it must appear for all.
static void run_check_folder(Run* run) {
    const Options* o = &run->opt;
    uint64_t word = 0;
    char path[FILE_PATH_MAX];
    FileError error;
    if (run->ranks.size == 1) { return; }
    if (run->ranks.rank == 0) { control_random(&word, sizeof(word)); }
    control_broadcast(run->control, "a word", &word, sizeof(word), 0);
    snprintf(path, sizeof(path), "%s/writable.%016llx.tmp", o->output_dir, (unsigned long long)word);  // one that an interrupted run's cleaning knows
    run_note_disk(run, "looking into the output folder");
    if (run->ranks.rank == 0) {
        const int code = file_append_lines(path, "\n", 1);
        require(code == 0, "check the disk", "cannot write into the folder '%s': %s", o->output_dir, strerror(max(code, 0)));
    }
    run_barrier(run, "the output folder");
    bool seen = false;
    const double begin = clock_ms();
    while (!(seen = access(path, F_OK) == 0) && clock_ms() - begin < FOLDER_SECONDS * 1e3) {
        usleep(50000);
        note_progress();
    }
    require(seen, "give all processes one folder, on a file system that their hosts share", "rank %d (host %s) does not see what rank 0 writes into --output-dir '%s', for %.0f s: it is another "
            "folder there", run->ranks.rank, run->ranks.host, o->output_dir, FOLDER_SECONDS);
    run_barrier(run, "the output folder is shared");
    if (run->ranks.rank == 0 && !checkpoint_unlink(path, &error)) { fprintf(stderr, "WARNING: %s\n", error.message); }
}

// Do all ranks have the same weights and scales? Ends the run if not, with the tensor and the ranks that differ from rank 0.
template <class floatX>
static void run_check_ranks(Run* run, GPT<floatX>* g) {
    const int P = run->ranks.size, items = NUM_PARAMS + 1;
    std::vector<uint64_t> mine(items, 0), all((size_t)P * items);
    std::vector<char> bytes;
    auto digest = [&](const void* device, size_t n, uint64_t seed) {
        bytes.resize(n);
        cudaCheck(cudaMemcpy(bytes.data(), device, n, cudaMemcpyDeviceToHost));
        return xxh64(bytes.data(), n, seed);
    };
    for (int p = 0; p < NUM_PARAMS; p++) {
        const ParamSpec* s = &g->spec[p];
        run_note(run, "comparing weights", false);
        for (int l = 0; l < s->layers; l++) {
            const bool codes = gpt_travels_as_codes(g, p, l);  // of these weights a rank has its own shard, and all have the FP8 codes
            mine[p] = codes ? digest(g->wk[s->linear] + l * s->stride, s->part, mine[p]) : digest(gpt_param(g, (ParamId)p, l), s->part * sizeof(floatX), mine[p]);
        }
    }
    if (g->fp8 && g->scaling.settings.history) {  // then the scales of inputs and gradients are those of all ranks as well (R4)
        mine[NUM_PARAMS] = digest(g->scaling.scale, fp8_training_slots(&g->scaling) * sizeof(float), 0);
    } else if (g->fp8) {
        mine[NUM_PARAMS] = digest(g->scaling.scale + fp8_slot(&g->scaling, FP8_ROLE_W, 0, 0), fp8_tensors(&g->scaling) * sizeof(float), 0);
    }
    control_all_gather(run->control, "weights", mine.data(), items * (int)sizeof(uint64_t), all.data(), 0);
    for (int r = 1; r < P; r++) {
        for (int i = 0; i < items; i++) {
            require(all[(size_t)r * items + i] == all[i], "the ranks' memory or network is not reliable, or this is a defect of the program: resume from the last checkpoint",
                    "rank %d has other %s than rank 0 after step %d (%016llx, not %016llx)", r, i < NUM_PARAMS ? g->spec[i].name : "FP8 scales", run->step,
                    (unsigned long long)all[(size_t)r * items + i], (unsigned long long)all[i]);
        }
    }
}

// ---------------------------------------------------------------------------- [H] checkpoint and resume

// The numbers of the run that go into the state file as they are.
typedef struct { uint64_t position, seq_len, data_digest, num_parameters, nonfinite; } RunRecord;

// Calls fn(tensor, layer, first element of the layer, elements) for what this rank writes into a checkpoint: its shards, also of what every rank has, so that
// all write at once.
template <class floatX, class F>
static void gpt_for_written(GPT<floatX>* g, F fn) {
    for (int p = 0; p < NUM_PARAMS; p++) {
        const size_t part = g->spec[p].part, chunk = ROUND_UP(CEIL_DIV(part, (size_t)g->comm->size), (size_t)256), first = chunk * g->comm->rank;
        for (int l = 0; first < part && l < g->spec[p].layers; l++) { fn(p, l, first, part - first < chunk ? part - first : chunk); }
    }
}

// The arrays of a checkpoint, each as long as the model; the masters may be missing. Moments are f32 there, however they are kept here.
enum { WRITTEN_M, WRITTEN_V, WRITTEN_MASTER, WRITTEN_MODEL, NUM_WRITTEN };
static const char* const written_names[NUM_WRITTEN] = {"m", "v", "master", STATE_SET_MODEL};
template <class floatX>
static size_t gpt_written_bytes(GPT<floatX>* g, int array) { return array == WRITTEN_MODEL ? sizeof(floatX) : array == WRITTEN_MASTER && !g->has_master ? 0 : sizeof(float); }

// f32 elements that the scratch of the head holds: moments of other types go through it on their way to the host and back.
template <class floatX>
static size_t gpt_moment_chunk(GPT<floatX>* g) {
    const size_t fit = g->head_rows * (size_t)g->config.padded_vocab_size * sizeof(floatX) / sizeof(float) / MOMENT_GROUP * MOMENT_GROUP;
    return fit < COPY_CHUNK ? fit : COPY_CHUNK;
}

// Copies the elements from `first` on of layer l, which this rank holds, to host memory. Enqueues only.
template <class floatX>
static void gpt_copy_written(GPT<floatX>* g, int array, int p, int l, size_t first, size_t n, char* host) {
    const ParamSpec* s = &g->spec[p];
    const size_t i = first - s->first, at = l * s->state_stride + i;
    cudaStream_t stream = g->dev->stream;
    const Moments* moments = &g->moments[p];
    if (array == WRITTEN_MODEL) { cudaCheck(cudaMemcpyAsync(host, gpt_param(g, (ParamId)p, l) + first, n * sizeof(floatX), cudaMemcpyDeviceToHost, stream)); return; }
    if (array == WRITTEN_MASTER || g->moment_type == MOMENT_F32) {
        const float* x = array == WRITTEN_MASTER ? g->master[p] : (const float*)(array == WRITTEN_M ? moments->m : moments->v);
        cudaCheck(cudaMemcpyAsync(host, x + at, n * sizeof(float), cudaMemcpyDeviceToHost, stream));
        return;
    }
    float* scratch = (float*)g->acts.logits;
    for (size_t done = 0, chunk = gpt_moment_chunk(g); done < n; done += chunk) {
        const size_t part = n - done < chunk ? n - done : chunk;
        moments_unpack(g->moment_type, array == WRITTEN_M ? scratch : NULL, array == WRITTEN_V ? scratch : NULL, moments, l, i + done, part, stream);
        cudaCheck(cudaMemcpyAsync(host + done * sizeof(float), scratch, part * sizeof(float), cudaMemcpyDeviceToHost, stream));
    }
}

// The other way: values (n) f32 in host memory become elements i.. of this rank's shard of layer l, of m, v or the masters. i is a multiple of 128. Waits.
template <class floatX>
static void gpt_put_written(GPT<floatX>* g, int array, int p, int l, size_t i, const float* values, size_t n) {
    cudaStream_t stream = g->dev->stream;
    Moments* moments = &g->moments[p];
    const size_t at = l * g->spec[p].state_stride + i, chunk = gpt_moment_chunk(g);
    if (array == WRITTEN_MASTER || g->moment_type == MOMENT_F32) {
        float* x = array == WRITTEN_MASTER ? g->master[p] : (float*)(array == WRITTEN_M ? moments->m : moments->v);
        cudaCheck(cudaMemcpy(x + at, values, n * sizeof(float), cudaMemcpyHostToDevice));
        return;
    }
    float* scratch = (float*)g->acts.logits;
    for (size_t done = 0; done < n; done += chunk) {
        const size_t part = n - done < chunk ? n - done : chunk;
        cudaCheck(cudaMemcpyAsync(scratch, values + done, part * sizeof(float), cudaMemcpyHostToDevice, stream));
        moments_pack(g->moment_type, moments, array == WRITTEN_M ? scratch : NULL, array == WRITTEN_V ? scratch : NULL, l, i + done, part, stream);
    }
    cudaCheck(cudaStreamSynchronize(stream));
}

#define SPOT_NOTICE_SECONDS 30  // what spot machines are told before they vanish, at the least

// What a checkpoint needs of this rank: training goes on while a thread writes it from a copy in host memory.
template <class floatX>
struct Snapshot {
    GPT<floatX>* direct;                // not NULL: there is no copy; training waits, and the arrays are read from the device piece by piece
    Options opt;
    Ranks ranks;
    Control* control;
    ModelHeader config;
    uint64_t num_parameters, writing;   // writing: tells this writing from any other of the same step
    int step;
    std::string options;
    std::vector<StatePiece> pieces;
    uint64_t elements;                  // in them
    bool has_master;
    std::vector<char> copy[NUM_WRITTEN];  // of the pieces, one after the other; empty if direct
    RunRecord record;                   // rank 0 writes these
    OutlierDetector outliers[2];
    std::vector<uint8_t> order;         // llm.c's data order only
    std::vector<unsigned> amax, amax_step, history, guard;
    std::vector<float> scale;           // FP8 only
    std::vector<int> damaged;           // steps whose checkpoints cannot be read back
    std::thread thread;
    bool running, ok;                   // ok: all ranks are done and DONE is there
    double begin_ms, end_ms;
};

template <class floatX>
static bool snapshot_write_array(Snapshot<floatX>* s, StateSetWriter* w, int array, FileError* error) {
    bool ok = state_set_array_begin(w, written_names[array], error);
    if (!s->direct) { return ok && state_set_append(w, s->copy[array].data(), s->elements, error) && state_set_array_end(w, error); }
    const size_t bytes = gpt_written_bytes(s->direct, array);
    std::vector<char> buffer(COPY_CHUNK * bytes);
    gpt_for_written(s->direct, [&](int p, int l, size_t first, size_t n) {
        for (size_t at = 0; ok && at < n; at += COPY_CHUNK) {
            const size_t part = n - at < COPY_CHUNK ? n - at : COPY_CHUNK;
            gpt_copy_written(s->direct, array, p, l, first + at, part, buffer.data());
            cudaCheck(cudaStreamSynchronize(s->direct->dev->stream));
            ok = state_set_append(w, buffer.data(), padding_compact(&s->direct->spec[p].shape, first + at, part, buffer.data(), bytes), error);
        }
    });
    return ok && state_set_array_end(w, error);
}

// The part of this rank, up to where all ranks must have come.
template <class floatX>
static bool snapshot_write_part(Snapshot<floatX>* s, StateSetWriter* w, FileError* error) {
    const Options* o = &s->opt;
    const int rank = s->ranks.rank, size = s->ranks.size;
    StateSetSpec spec = {o->output_dir, s->step, rank, size, s->writing, s->options.c_str(), &s->config, sizeof(floatX) == 2 ? (uint32_t)FILE_BF16 : (uint32_t)FILE_F32,
                         s->num_parameters, s->pieces.data(), s->pieces.size(), s->has_master ? 3 : 2};
    bool ok = rank > 0 || (checkpoint_begin(o->output_dir, s->step, error) && state_set_write_begin(w, &spec, error));
    if (!ranks_all_ok(s->control, size, "checkpoint begun", ok)) { return false; }
    ok = rank == 0 || state_set_write_begin(w, &spec, error);
    for (int i = 0; ok && i < NUM_WRITTEN; i++) { ok = (i == WRITTEN_MASTER && !s->has_master) || snapshot_write_array(s, w, i, error); }
    if (rank == 0) {
        auto section = [&](const char* name, uint32_t dtype, const void* data, size_t n) { return n == 0 || state_write_section(&w->state, name, dtype, n, data, error); };
        ok = ok && section("run", FILE_U64, &s->record, sizeof(RunRecord) / 8) && section("outliers", FILE_U8, s->outliers, sizeof(s->outliers)) &&
             section("order", FILE_U8, s->order.data(), s->order.size()) && section("fp8/amax", FILE_U32, s->amax.data(), s->amax.size()) &&
             section("fp8/amax_step", FILE_U32, s->amax_step.data(), s->amax_step.size()) && section("fp8/scale", FILE_F32, s->scale.data(), s->scale.size()) &&
             section("fp8/history", FILE_U32, s->history.data(), s->history.size()) && section("fp8/guard", FILE_U32, s->guard.data(), s->guard.size());
    }
    return ok && state_set_write_end(w, error);
}

template <class floatX>
static void snapshot_note(Snapshot<floatX>* s, const char* op) { control_note_disk(s->control, op, s->step); }

// Model and states of all ranks, DONE, then the removal of old checkpoints. A failure is reported; the older checkpoints are intact then.
template <class floatX>
static void snapshot_write(Snapshot<floatX>* s) {
    const Options* o = &s->opt;
    const int rank = s->ranks.rank, size = s->ranks.size;
    FileError error;
    StateSetWriter w;
    error.message[0] = 0;  // stays so where another rank failed: that one reports
    snapshot_note(s, "writing a checkpoint");
    const int failed = ranks_first_failed(s->control, size, "checkpoint written", snapshot_write_part(s, &w, &error));
    bool ok = failed < 0;
    if (failed != rank) { error.message[0] = 0; }  // a disk that is full for several is one warning
    if (ok && rank == 0) { ok = state_set_write_commit(&w, &error) && checkpoint_done(o->output_dir, s->step, &error); }
    s->ok = ranks_all_ok(s->control, size, "checkpoint done", ok);
    s->end_ms = clock_ms();
    if (!s->ok) {
        state_set_write_abort(&w);
        ranks_all_ok(s->control, size, "checkpoint removed", true);  // nobody ends the run before all have cleaned up
        if (error.message[0]) { fprintf(stderr, "WARNING: checkpoint at step %d was not written: %s\nHINT:  %s\n", s->step, error.message, error.hint); }
        return;
    }
    std::vector<int> deleted;
    if (o->checkpoint_keep > 0) {  // older ones go only when this one was read back, each rank a part
        snapshot_note(s, "reading a checkpoint back");
        const bool read = checkpoint_verify(o->output_dir, s->step, rank, size, &error);
        if (!read) { fprintf(stderr, "WARNING: checkpoint at step %d cannot be read back: %s\nHINT:  %s; older checkpoints are kept\n", s->step, error.message, error.hint); }
        if (!ranks_all_ok(s->control, size, "checkpoint read back", read)) {
            char path[FILE_PATH_MAX];
            checkpoint_done_path(path, o->output_dir, s->step);
            if (rank == 0 && !checkpoint_unlink(path, &error)) { fprintf(stderr, "WARNING: %s\n", error.message); }
            s->ok = false;
            return;
        }
    }
    s->damaged.erase(std::remove(s->damaged.begin(), s->damaged.end(), s->step), s->damaged.end());
    snapshot_note(s, "removing old checkpoints");
    if (rank == 0 && !checkpoint_prune(o->output_dir, s->step, o->checkpoint_keep, o->checkpoint_major_every, s->damaged, &deleted, &error, stdout)) {
        fprintf(stderr, "WARNING: old checkpoints could not be removed: %s\nHINT:  %s\n", error.message, error.hint);
    }
}
template <class floatX>
static void snapshot_main(Snapshot<floatX>* s) {
    control_writer_begin(s->control);
    snapshot_write(s);
    control_writer_end(s->control);
}
// Waits for the checkpoint that is being written, if one is. False: it failed, and said so.
template <class floatX>
static bool run_finish_checkpoint(Run* run, Snapshot<floatX>* s) {
    if (!s->running) { return true; }
    const double begin = clock_ms();
    if (!s->direct) {
        control_note_thread(run->control, "waiting for a checkpoint to be written", run->step);
        s->thread.join();
    }
    run_note(run, "a checkpoint is written", false);
    s->running = false;
    goodput_add(&run->goodput, GOODPUT_SAVING, (clock_ms() - begin) * 1e-3);
    const double seconds = (s->end_ms - s->begin_ms) * 1e-3;
    if (s->ok && seconds > SPOT_NOTICE_SECONDS && !run->told_slow) {
        printf("note: a checkpoint takes %.0f s, more than the %d s of notice that spot machines may give\n", seconds, SPOT_NOTICE_SECONDS);
        run->told_slow = true;
    }
    return s->ok;
}

// Elements that this rank writes into a checkpoint, and their bytes.
template <class floatX>
static uint64_t run_checkpoint_bytes(GPT<floatX>* g, uint64_t* elements) {
    uint64_t bytes = 0, at;
    *elements = 0;
    gpt_for_written(g, [&](int p, int l, size_t first, size_t n) { *elements += param_in_files(&g->spec[p], l, first, n, &at); });
    for (int i = 0; i < NUM_WRITTEN; i++) { bytes += *elements * gpt_written_bytes(g, i); }
    return bytes;
}

// Before training: how long a checkpoint will take, by trying the disk on all ranks at once, and whether the memory for a copy is there.
template <class floatX>
static void run_forecast_checkpoint(Run* run, GPT<floatX>* g, Snapshot<floatX>* s) {
    const int P = run->ranks.size, rank = run->ranks.rank;
    uint64_t elements;
    const uint64_t bytes = run_checkpoint_bytes(g, &elements), room = host_memory_available();
    s->direct = run->opt.background_save && bytes < room / 10 * 9 / run->ranks.local_size ? NULL : g;
    run_barrier(run, "trying the disk");
    run_note_disk(run, "trying the disk");
    const double speed = file_measure_writing(run->opt.output_dir, rank, bytes);
    const double mine[4] = {speed > 0.0 ? bytes / speed : 0.0, (double)bytes, speed > 0.0 ? 1.0 : 0.0, s->direct ? 1.0 : 0.0};  // was it measured, must training wait
    std::vector<double> all(4 * (size_t)P);
    control_all_gather(run->control, "checkpoint forecast", mine, sizeof(mine), all.data(), 0);
    double seconds = 0.0, total = 0.0, measured = 0.0, direct = 0.0;
    for (int r = 0; r < P; r++) {
        seconds = all[4 * r] > seconds ? all[4 * r] : seconds;
        total += all[4 * r + 1];
        measured += all[4 * r + 2];
        direct += all[4 * r + 3];
    }
    if (direct > 0.0) { s->direct = g; }  // one rank, all ranks
    if (direct > 0.0 && run->opt.background_save) {
        printf("note: training waits while a checkpoint is written: a copy needs %.1f MiB on each of %d processes of a host, and %.1f MiB of memory are left on the first\n", bytes / 1048576.0,
               run->ranks.local_size, room / 1048576.0);
    }
    if (measured < P) { return; }  // the first checkpoint says why
    printf("a checkpoint has %.1f MiB and takes about %.1f s on this disk (tried: %.0f MiB/s)\n", total / 1048576.0, seconds, total / 1048576.0 / seconds);
    if (seconds > SPOT_NOTICE_SECONDS) {
        printf("WARNING: that is more than the %d s of notice that spot machines may give: use a faster disk for --output-dir, or --save-every-minutes\n", SPOT_NOTICE_SECONDS);
        run->told_slow = true;
    }
}

// Copies what a checkpoint of this step needs into host memory and lets a thread write it. An older one that is still being written is waited for first.
template <class floatX>
static void run_begin_checkpoint(Run* run, GPT<floatX>* g, Snapshot<floatX>* s) {
    char path[FILE_PATH_MAX];
    const bool fp8 = g->fp8, llmc = run->train.order == DATA_ORDER_LLMC;
    run_finish_checkpoint(run, s);
    run_note(run, "copying a checkpoint", false);
    s->begin_ms = clock_ms();
    checkpoint_model_path(path, run->opt.output_dir, run->step);
    printf("Writing checkpoint at step %d\nWriting model to %s\n", run->step, path);
    checkpoint_state_path(path, run->opt.output_dir, run->step, run->ranks.rank);
    printf("Writing state to %s\n", path);
    s->opt = run->opt;
    s->ranks = run->ranks;
    s->control = run->control;
    s->config = g->model;
    s->num_parameters = g->num_parameters;
    s->step = run->step;
    s->writing = (uint64_t)time(NULL) << 20 ^ (uint64_t)getpid() << 40 ^ (uint64_t)run->step;
    control_broadcast(run->control, "checkpoint", &s->writing, sizeof(s->writing), 0);
    s->options = options_to_text(&run->opt);
    s->pieces.clear();
    size_t places = 0;
    gpt_for_written(g, [&](int p, int l, size_t first, size_t n) {
        uint64_t at;
        const size_t real = param_in_files(&g->spec[p], l, first, n, &at);
        state_pieces_add(&s->pieces, at, real);
        places += n;
    });
    run_checkpoint_bytes(g, &s->elements);
    s->has_master = g->has_master;
    for (int i = 0; i < NUM_WRITTEN && !s->direct; i++) {
        const size_t bytes = gpt_written_bytes(g, i);
        s->copy[i].resize(places * bytes);
        size_t done = 0;
        gpt_for_written(g, [&](int p, int l, size_t first, size_t n) {
            if (bytes) { gpt_copy_written(g, i, p, l, first, n, s->copy[i].data() + done); }
            done += n * bytes;
        });
    }
    cudaCheck(cudaStreamSynchronize(g->dev->stream));
    for (int i = 0; i < NUM_WRITTEN && !s->direct && places > s->elements; i++) {  // without padding
        const size_t bytes = gpt_written_bytes(g, i);
        char *from = s->copy[i].data(), *to = from;
        gpt_for_written(g, [&](int p, int, size_t first, size_t n) {
            const size_t kept = padding_compact(&g->spec[p].shape, first, n, from, bytes) * bytes;
            memmove(to, from, kept);
            from += n * bytes;
            to += kept;
        });
    }
    s->record = {run->position, (uint64_t)run->opt.seq_len, dataloader_digest(&run->train), g->num_parameters, (uint64_t)run->nonfinite_in_a_row};
    s->outliers[0] = run->loss_outliers;
    s->outliers[1] = run->norm_outliers;
    s->order.resize(llmc ? dataloader_llmc_order_bytes(&run->train) : 0);
    if (llmc) { dataloader_llmc_get_order(&run->train, s->order.data()); }
    if (fp8) {
        Fp8ScalingHost h;
        fp8_scaling_copy(&g->scaling, &h);
        s->amax.assign(h.amax, h.amax + g->scaling.count);
        s->amax_step.assign(h.amax_step, h.amax_step + g->scaling.count);
        s->scale.assign(h.scale, h.scale + g->scaling.count);
        s->guard.assign(run->guard_until.begin(), run->guard_until.end());
        s->history.assign(h.history, h.history + (size_t)fp8_training_slots(&g->scaling) * g->scaling.settings.history);
        fp8_scaling_host_free(&h);
    }
    s->ok = false;
    s->running = true;
    if (s->direct) { snapshot_write(s); } else { s->thread = std::thread(snapshot_main<floatX>, s); }
    run->saved_ms = clock_ms();
    goodput_add(&run->goodput, GOODPUT_SAVING, (run->saved_ms - s->begin_ms) * 1e-3);
}

// How an optimizer step is dealt out: B sequences to each rank in turn, until there are none left. The last ones to come may get fewer, or none.
static void run_plan_batch(Run* run) {
    Options* o = &run->opt;
    const uint64_t micro_tokens = (uint64_t)o->batch_size * o->seq_len * run->ranks.size;
    run->total_tokens = o->total_batch_tokens > 0 ? o->total_batch_tokens : micro_tokens;
    run->accum = (int)CEIL_DIV(run->total_tokens, micro_tokens);
    o->total_batch_tokens = (int64_t)run->total_tokens;  // what runs is recorded
    require(run->total_tokens % micro_tokens == 0 || o->data_order != OPT_ORDER_LLMC, "choose a multiple, or --data-order sequence", "--total-batch-tokens %llu is not a multiple of "
            "--batch-size %d times --seq-len %d times %d processes = %llu, which llm.c's data order needs", (unsigned long long)run->total_tokens, o->batch_size, o->seq_len, run->ranks.size,
            (unsigned long long)micro_tokens);
}

// What the checkpoint to resume from implies, unless the command line says otherwise: the master weights, which would be lost for good, the data order, and
// the tokens of a step, so that other processes go on with the same training. llm.c's state stands for its FP32 masters and its order.
static void run_adopt_checkpoint(Run* run, int num_ranks) {
    Options* o = &run->opt;
    char path[FILE_PATH_MAX];
    int32_t head[5];
    FileError error;
    InputFile file;
    checkpoint_state_path(path, o->output_dir, run->resumed_step, 0);
    fileCheck(input_file_open(&file, path, &error), &error);
    fileCheck(input_file_read(&file, head, sizeof(head), &error), &error);
    input_file_close(&file);
    run->llmc_state = head[0] == LLMC_STATE_MAGIC;
    ModelHeader config;
    uint32_t file_dtype;
    uint64_t count;
    checkpoint_model_path(path, o->output_dir, run->resumed_step);
    fileCheck(model_file_read_header(path, gpt_count_parameters, &config, &file_dtype, &count, &error), &error);
    if (file_dtype == FILE_F32 && o->dtype != OPT_DTYPE_FLOAT32) {  // its parameters are the masters
        const bool keeps = !options_is_set(o, "master_dtype");
        if (keeps) { o->master_dtype = OPT_MASTER_FLOAT32; }
        printf("resume: the weights of the checkpoint are float32: %s\n", o->master_dtype == OPT_MASTER_FLOAT32 ? "they become the masters" : "they are rounded to bfloat16");
    }
    checkpoint_state_path(path, o->output_dir, run->resumed_step, 0);
    if (!run->llmc_state) {
        StateReader r;
        fileCheck(state_read_open(&r, path, &error), &error);
        for (const OptionDiff& d : options_diff(r.config, options_to_text(o))) {
            const bool keeps = d.name == "data_order" || (d.name == "master_dtype" && file_dtype != FILE_F32) || (d.name == "total_batch_tokens" && atoll(d.before.c_str()) % o->seq_len == 0);
            if (!keeps || !d.in_before || options_is_set(o, d.name.c_str())) { continue; }
            const OptionSpec* spec = option_find(d.name.c_str(), d.name.size());
            option_store(o, spec, option_long_name(spec).c_str(), d.before.c_str());  // a choice: nothing points into d
            printf("resume: %s stays %s, as in the checkpoint\n", option_long_name(spec).c_str(), d.before.c_str());
        }
        state_read_close(&r);
        return;
    }
    run->order_ranks = num_ranks;
    printf("the checkpoint is llm.c's, of %d process%s\n", num_ranks, num_ranks > 1 ? "es" : "");
    if (!options_is_set(o, "data_order")) { o->data_order = OPT_ORDER_LLMC; }
    if (head[4] == 1 && !options_is_set(o, "master_dtype")) { o->master_dtype = OPT_MASTER_FLOAT32; }
}

// Moments, masters and the place in the data of an llm.c run; the weights are in its model file.
template <class floatX>
static void run_load_llmc_state(Run* run, GPT<floatX>* g) {
    const Options* o = &run->opt;
    FileError error;
    LlmcState s;
    LlmcTensor tensors[NUM_PARAMS];
    for (int p = 0; p < NUM_PARAMS; p++) { tensors[p] = {(uint64_t)g->spec[p].layers, g->spec[p].real_part}; }
    fileCheck(llmc_state_open(&s, o->output_dir, run->resumed_step, tensors, NUM_PARAMS, &error), &error);
    std::vector<float> buffer(COPY_CHUNK);
    auto next = [&](int p, int l, size_t at, size_t n) {
        uint64_t first;
        fileCheck(llmc_state_next(&s, buffer.data(), param_in_files(&g->spec[p], l, at, n, &first), &error), &error);
        padding_expand(&g->spec[p].shape, at, n, buffer.data(), sizeof(float));
    };
    auto read = [&](LlmcStateArray array, int to) {
        llmc_state_begin(&s, array);
        gpt_for_pieces(g->spec, [&](int p, int l, size_t at, size_t n) {
            next(p, l, at, n);
            size_t begin = 0, i = 0, held = gpt_held(&g->spec[p], at, n, &begin, &i);
            if (held) { gpt_put_written(g, to, p, l, i, buffer.data() + begin, held); }
        });
    };
    read(LLMC_STATE_M, WRITTEN_M);
    read(LLMC_STATE_V, WRITTEN_V);
    if (s.has_master && g->has_master) { read(LLMC_STATE_MASTER, WRITTEN_MASTER); }
    else if (s.has_master && sizeof(floatX) == 4) {
        llmc_state_begin(&s, LLMC_STATE_MASTER);
        gpt_for_pieces(g->spec, [&](int p, int l, size_t at, size_t n) {
            next(p, l, at, n);
            gpt_upload(gpt_param(g, (ParamId)p, l) + at, buffer.data(), n);
        });
    } else if (s.has_master) { printf("resume: the float32 masters of llm.c's checkpoint are not used (--master-dtype bfloat16)\n"); }
    else if (g->has_master) { printf("resume: llm.c's checkpoint has no float32 masters; they start from the weights of its model file\n"); }
    run->step = s.step;
    run->position = (uint64_t)s.step * run->total_tokens / o->seq_len;
    if (o->data_order == OPT_ORDER_LLMC && !s.shuffle) {  // that run repeated one batch (-a 1): it has no place in the data
        run->position = 0;
        if (!o->overfit_single_batch) { printf("resume: llm.c's run repeated one batch (-a 1); now the data starts from its beginning\n"); }
    } else if (o->data_order == OPT_ORDER_LLMC) {  // with -a 1 too: a later resume without it goes on from there
        const uint64_t unit = (uint64_t)o->batch_size * o->seq_len * s.num_ranks;
        require(run->total_tokens % unit == 0, "give the --total-batch-tokens (-d) and --batch-size (-b) that the run had", "--total-batch-tokens %llu is no multiple of %llu, "
                "one batch of each of the %d processes that llm.c's run had", (unsigned long long)run->total_tokens, (unsigned long long)unit, s.num_ranks);
        for (int r = 0; r < s.num_ranks; r++) {
            fileCheck(dataloader_llmc_set_place(&run->train, r, &s.ranks[r].place, run->position, s.ranks[r].file.path, &error), &error);
        }
    } else if (o->data_order == OPT_ORDER_SEQUENCE) {
        printf("resume: the data goes on in the order of --data-order sequence, after as many tokens: some of llm.c's epoch come again, others are left out\n");
    }
    llmc_state_close(&s);
}

// The places at .. at + n of layer l, of an array of f32.
static void state_read_places(StateSet* set, const char* name, const ParamSpec* s, int l, size_t at, size_t n, float* out) {
    FileError error;
    uint64_t first;
    const size_t real = param_in_files(s, l, at, n, &first);
    fileCheck(state_set_read(set, name, first, real, out, &error), &error);
    padding_expand(&s->shape, at, n, out, sizeof(float));
}
// The arrays of the optimizer that this rank holds, from whatever ranks wrote them.
template <class floatX>
static void run_read_state(GPT<floatX>* g, StateSet* set, int array) {
    std::vector<float> buffer(COPY_CHUNK);
    for (int p = 0; p < NUM_PARAMS; p++) {
        const ParamSpec* s = &g->spec[p];
        for (int l = 0; l < s->layers; l++) {
            for (size_t at = 0; at < s->held; at += COPY_CHUNK) {
                size_t n = s->held - at < COPY_CHUNK ? s->held - at : COPY_CHUNK;
                state_read_places(set, written_names[array], s, l, s->first + at, n, buffer.data());
                gpt_put_written(g, array, p, l, at, buffer.data(), n);
            }
        }
    }
}

// Moments, masters, position and FP8 state of the checkpoint whose model is loaded already, written by any number of ranks.
template <class floatX>
static void run_load_state(Run* run, GPT<floatX>* g) {
    if (run->llmc_state) { run_load_llmc_state(run, g); return; }
    FileError error, none;
    StateSet set;
    fileCheck(state_set_open(&set, run->opt.output_dir, run->resumed_step, g->num_parameters, &error), &error);
    StateReader* r = &set.first;
    const char* path = r->file.path;
    for (const OptionDiff& d : options_diff(r->config, options_to_text(&run->opt))) {
        if (d.name == "resume" || d.name == "process_rank") { continue; }
        const OptionSpec* spec = option_find(d.name.c_str(), d.name.size());
        printf("resume: %s was %.100s, is %.100s\n", spec ? option_long_name(spec).c_str() : d.name.c_str(), d.before.c_str(), d.after.c_str());
    }
    if (set.num_ranks != run->ranks.size) { printf("resume: processes that wrote the checkpoint: %d, that go on: %d\n", set.num_ranks, run->ranks.size); }
    RunRecord record;
    fileCheck(state_read_section(r, "run", FILE_U64, sizeof(record) / 8, &record, &error), &error);
    if (record.data_digest != dataloader_digest(&run->train)) {
        printf("resume: the training data changed: the order of the new data goes on at sequence %llu\n", (unsigned long long)record.position);
    }
    run->position = record.position;
    if (record.seq_len != (uint64_t)run->opt.seq_len) {  // other sequences, another order: only the number of tokens can be kept
        run->position = record.position * record.seq_len / run->opt.seq_len;
        printf("resume: --seq-len changed: the order of the new sequences goes on after as many tokens, at sequence %llu\n", (unsigned long long)run->position);
    }
    run->step = run->resumed_step;
    run->nonfinite_in_a_row = (int)record.nonfinite;
    const StateSection* order = state_find(r, "order", &none);
    if (run->train.order == DATA_ORDER_LLMC && order) {
        std::vector<uint8_t> kept(order->count);
        fileCheck(state_read_section(r, "order", FILE_U8, kept.size(), kept.data(), &error), &error);
        fileCheck(dataloader_llmc_set_order(&run->train, kept.data(), kept.size(), path, &error), &error);
    } else if ((run->train.order == DATA_ORDER_LLMC) != (order != NULL)) {
        printf("resume: --data-order changed: the data goes on in the new order after as many tokens\n");
    }
    run_read_state(g, &set, WRITTEN_M);
    run_read_state(g, &set, WRITTEN_V);
    const bool masters = state_set_has(&set, "master");
    if (g->has_master) {
        if (masters) { run_read_state(g, &set, WRITTEN_MASTER); }
        else if (set.model_dtype != FILE_F32) { printf("resume: the checkpoint has no float32 masters; they start from the weights of its model file\n"); }
    } else if (sizeof(floatX) == 4 && masters) {  // in float32 the parameters are the masters
        std::vector<float> buffer(COPY_CHUNK);
        gpt_for_pieces(g->spec, [&](int p, int l, size_t at, size_t n) {
            state_read_places(&set, "master", &g->spec[p], l, at, n, buffer.data());
            gpt_upload(gpt_param(g, (ParamId)p, l) + at, buffer.data(), n);
        });
    } else if (masters) {
        printf("resume: the float32 masters of the checkpoint are not used (--master-dtype bfloat16)\n");
    }
    OutlierDetector outliers[2];
    fileCheck(state_read_section(r, "outliers", FILE_U8, sizeof(outliers), outliers, &error), &error);
    run->loss_outliers = outliers[0];
    run->norm_outliers = outliers[1];
    if (g->fp8 && state_find(r, "fp8/amax", &none)) {
        Fp8Scaling* s = &g->scaling;
        const int linears = s->layers * NUM_LINEARS, found = (int)(state_find(r, "fp8/amax", &none)->count / NUM_FP8_ROLES);  // tensors of a role, there
        require(found == linears || found == linears + 1, "it was damaged, or written by another program", "'%s' has FP8 scales of %d tensors of each role; this model has %d, or %d with the head",
                path, found, linears, linears + 1);
        if (found != fp8_tensors(s)) { printf("resume: %s\n", found < fp8_tensors(s) ? "the checkpoint has no FP8 scales of the head: they start afresh" : "the FP8 scales of the head are not used"); }
        // values of each tensor of each role; a tensor that is not there gets `fresh`
        auto read = [&](const char* name, uint32_t dtype, int roles, auto fresh) {
            std::vector<decltype(fresh)> there, here;
            const StateSection* section = state_find(r, name, &none);
            if (!section) { return here; }
            const size_t per = section->count / ((size_t)roles * found), both = min(found, fp8_tensors(s)) * per;
            there.resize((size_t)roles * found * per);
            here.assign((size_t)roles * fp8_tensors(s) * per, fresh);
            fileCheck(state_read_section(r, name, dtype, there.size(), there.data(), &error), &error);
            for (int role = 0; role < roles; role++) { std::copy_n(there.begin() + role * found * per, both, here.begin() + role * fp8_tensors(s) * per); }
            return here;
        };
        const std::vector<unsigned> amax = read("fp8/amax", FILE_U32, NUM_FP8_ROLES, 0u), amax_step = read("fp8/amax_step", FILE_U32, NUM_FP8_ROLES, 0u);
        const std::vector<unsigned> history = read("fp8/history", FILE_U32, FP8_ROLE_EVAL_X, FP8_EMPTY), until = read("fp8/guard", FILE_U32, 1, 0u);
        const std::vector<float> scale = read("fp8/scale", FILE_F32, NUM_FP8_ROLES, 1.0f);
        const bool moved = std::count(until.begin(), until.end(), 0u) < (int64_t)until.size();
        if (moved && !run->opt.fp8_guard_every) { printf("resume: the guard is off: the linear layers that it had moved to BF16 are in FP8 again\n"); }
        if (moved && run->opt.fp8_guard_every) {
            for (size_t k = 0; k < until.size(); k++) {  // weights are quantized after this
                run->guard_until[k] = s->in_bf16[k] ? 0 : (int)until[k];
                s->in_bf16[k] |= until[k] != 0;
            }
        }
        fp8_scaling_restore(s, amax.data(), amax_step.data(), scale.data(), history.data(), (int)(history.size() / fp8_training_slots(s)));
    }
    state_set_close(&set);
}

// ---------------------------------------------------------------------------- [I] evaluation and sampling

// A batch of the host to the device and through the model, without gradients; acts.losses (N) then holds the loss of every position. Enqueues only:
// inputs and targets may change once the stream was waited for.
template <class floatX>
static void gpt_evaluate(GPT<floatX>* g, const int* inputs, const int* targets) {
    cudaStream_t stream = g->dev->stream;
    const int N = g->B * g->T;
    cudaCheck(cudaMemcpyAsync(g->acts.inputs, inputs, N * sizeof(int), cudaMemcpyHostToDevice, stream));
    cudaCheck(cudaMemcpyAsync(g->acts.targets, targets, N * sizeof(int), cudaMemcpyHostToDevice, stream));
    cudaCheck(cudaMemsetAsync(g->acts.losses, 0, N * sizeof(float), stream));
    gpt_forward_trunk(g, g->B, g->T, 0, FP8_ROLE_EVAL_X);
    gpt_head(g, N, 0.0f);
}

// inputs, targets (B,T), T padded: `rows` sequences of the loader from `position` on. What fills up has no target: rows beyond are copies of the first, so that
// they do not move a scale; positions beyond --seq-len repeat the last token.
static void run_read(Run* run, DataLoader* loader, uint64_t position, int rows) {
    const int B = run->opt.batch_size, T = run->opt.seq_len, Tp = (int)(run->inputs.size() / B);
    int *inputs = run->inputs.data(), *targets = run->targets.data();
    dataloader_read(loader, inputs, targets, rows ? rows : 1, position);
    for (int b = max(rows, 1) - 1; Tp > T && b >= 0; b--) {  // from the last on: they move apart in place
        memmove(inputs + (size_t)b * Tp, inputs + (size_t)b * T, T * sizeof(int));
        memmove(targets + (size_t)b * Tp, targets + (size_t)b * T, T * sizeof(int));
        for (int t = T; t < Tp; t++) {
            inputs[(size_t)b * Tp + t] = inputs[(size_t)b * Tp + T - 1];
            targets[(size_t)b * Tp + t] = NO_TARGET;
        }
    }
    for (int b = max(rows, 1); b < B; b++) { memcpy(inputs + (size_t)b * Tp, inputs, Tp * sizeof(int)); }
    for (int i = rows * Tp; i < B * Tp; i++) { targets[i] = NO_TARGET; }
}

// Batches of one validation, over all ranks. llm.c's order: as many as asked for on each rank, from the start again when the data ends. Else: no sequence
// twice, unless there are fewer than B, whatever the number of ranks.
static uint64_t run_val_batches(const Run* run) {
    const Options* o = &run->opt;
    const bool llmc = o->data_order == OPT_ORDER_LLMC;
    const uint64_t ranks = llmc ? run->ranks.size : 1;
    uint64_t all = llmc ? run->val.num_tokens / ((uint64_t)o->batch_size * o->seq_len * ranks) * ranks : run->val.num_sequences / o->batch_size;
    if (all == 0) { all = 1; }
    return o->val_steps < 0 || (!llmc && all < (uint64_t)o->val_steps) ? all : (uint64_t)o->val_steps * ranks;
}

// Mean loss over the batches of run_val_batches from the start of the validation set, dealt out to the ranks. At least one. False: a rank was told to end.
template <class floatX>
static bool run_validate(Run* run, GPT<floatX>* g, float* mean) {
    const int B = g->B, N = B * g->T;
    const double tokens = (double)B * run->opt.seq_len;
    const uint64_t batches = run_val_batches(run);
    double sums[2] = {0.0, 0.0};  // of the losses, of the ranks that were told to end
    for (uint64_t i = run->ranks.rank; i < batches && sums[1] == 0.0; i += run->ranks.size) {
        run_note(run, "validation", false);
        run_read(run, &run->val, i * B, B);
        gpt_evaluate(g, run->inputs.data(), run->targets.data());
        cudaStream_t stream = g->dev->stream;
        sum_all(g->acts.scalars, g->acts.losses, N, stream);
        float loss = 0.0f;
        cudaCheck(cudaMemcpyAsync(&loss, g->acts.scalars, sizeof(float), cudaMemcpyDeviceToHost, stream));
        cudaCheck(cudaStreamSynchronize(stream));
        sums[0] += loss / tokens;
        sums[1] = run_told_to_end(run);
    }
    run_sum(run, "validation", sums, 2);
    *mean = (float)(sums[0] / batches);
    return sums[1] == 0.0;
}

// Opens the questions, if they are wanted. A missing file does not end the run, as in llm.c.
static void run_open_eval(Run* run, int vocab_size) {
    const Options* o = &run->opt;
    FileError error;
    if (!o->hellaswag) { return; }
    run->has_eval = eval_loader_init(&run->eval, o->eval_data, gpt_padded_seq_len(o->seq_len, o->dtype == OPT_DTYPE_FLOAT8), vocab_size, run->ranks.rank, run->ranks.size, &error);
    if (run->has_eval) { return; }
    if (error.code != ENOENT || options_is_set(o, "eval_data")) { fileCheck(false, &error); }
    printf("HellaSwag eval not found at %s, skipping its evaluation\nYou can run `python3 dev/data/hellaswag.py` to make it, then use it with `-h 1`.\n", o->eval_data);
}

// The share of the questions that the model answers right. False: a rank was told to end.
template <class floatX>
static bool run_evaluate(Run* run, GPT<floatX>* g) {
    EvalLoader* eval = &run->eval;
    const int B = g->B;
    std::vector<float> losses((size_t)B * g->T);
    double sums[3] = {0.0, 0.0, 0.0};  // right ones, all, ranks that were told to end
    for (int row = 0, batch = 0; row < eval->num_rows && sums[2] == 0.0; row += B, batch++) {
        run_note(run, "HellaSwag", false);
        if (batch % 10 == 0) {
            printf("evaluating HellaSwag: %d/%d\r", batch, CEIL_DIV(eval->num_rows, B));
            fflush(stdout);
        }
        eval_loader_read_rows(eval, run->inputs.data(), run->targets.data(), row, B);
        gpt_evaluate(g, run->inputs.data(), run->targets.data());
        cudaCheck(cudaMemcpyAsync(losses.data(), g->acts.losses, losses.size() * sizeof(float), cudaMemcpyDeviceToHost, g->dev->stream));
        cudaCheck(cudaStreamSynchronize(g->dev->stream));
        eval_loader_add_losses(eval, losses.data(), row, B);
        sums[2] = run_told_to_end(run);
    }
    int correct = 0, total = 0;
    if (sums[2] == 0.0) { eval_loader_result(eval, &correct, &total); }
    sums[0] = correct;
    sums[1] = total;
    run_sum(run, "evaluation", sums, 3);
    if (sums[2] > 0.0) { return false; }
    correct = (int)sums[0];
    total = (int)sums[1];
    const float accuracy = (float)correct / total;
    printf("HellaSwag: %d/%d = %f\n", correct, total, accuracy);
    run_note_disk(run, "writing the logs");
    logger_log_eval(&run->logger, run->step, accuracy);
    run_note(run, "HellaSwag", false);
    return true;
}

// Logits (V) f32 of the token after tokens (n) on the host, n <= T. *cached tokens went through before and lie in the key-value cache: a single new
// one is one row; otherwise all go through.
template <class floatX>
static void gpt_next_logits(GPT<floatX>* g, const int* tokens, int n, int* cached, std::vector<float>* logits) {
    const int C = g->config.channels, V = g->config.vocab_size;
    const bool one = *cached > 0 && n == *cached + 1;
    cudaStream_t stream = g->dev->stream;
    std::vector<int> input(tokens + (one ? n - 1 : 0), tokens + n);
    if (!one) { input.resize(sample_padded_length(n, g->T), tokens[0]); }  // rows beyond n: later tokens, which earlier ones cannot see
    cudaCheck(cudaMemcpyAsync(g->acts.inputs, input.data(), input.size() * sizeof(int), cudaMemcpyHostToDevice, stream));
    gpt_forward_trunk(g, 1, (int)input.size(), one ? n - 1 : 0, FP8_ROLE_EVAL_X);
    const int rows = gpt_head_decode_rows(g);
    floatX* x = g->acts.lnf + (one ? 0 : (size_t)(n - 1) * C);
    if (rows > 1 && x != g->acts.lnf) {  // to the front: there are rows behind it then
        cudaCheck(cudaMemcpyAsync(g->acts.lnf, x, C * sizeof(floatX), cudaMemcpyDeviceToDevice, stream));
        x = g->acts.lnf;
    }
    const Operand row_x = gpt_head_operand(g, FP8_ROLE_EVAL_X, x, g->acts.head_x, g->acts.head_xs, rows, C, 1);
    gpt_head_gemm(g, "gemm sampling", PASS_FPROP, g->acts.logits, row_x, gpt_operand_w(g, 0, LINEAR_HEAD), rows);
    std::vector<floatX> row(V);
    cudaCheck(cudaMemcpyAsync(row.data(), g->acts.logits, V * sizeof(floatX), cudaMemcpyDeviceToHost, stream));
    cudaCheck(cudaStreamSynchronize(stream));
    logits->resize(V);
    for (int i = 0; i < V; i++) { (*logits)[i] = to_float(row[i]); }
    *cached = n;
}

// What samples start from: the prompt (\n, \t and \\ are a newline, a tab and a backslash), or the end-of-text token (bytes: a newline).
static void run_open_prompt(Run* run, int vocab_size) {
    const Options* o = &run->opt;
    Tokenizer* t = &run->tokenizer;
    run->sample_start.assign(1, t->ok && t->vocab_size == BYTE_VOCAB ? '\n' : t->ok ? (int)t->eot : vocab_size - 1);
    if (!o->prompt[0]) { return; }
    require(t->ok, "name its file with --tokenizer, for instance --tokenizer data/text/tokenizer.bin", "--prompt needs a tokenizer");
    static const char letters[] = "nt\\", meant[] = "\n\t\\";
    std::string text;
    for (const char* p = o->prompt; *p; p++) {
        const char* escape = *p == '\\' && p[1] ? strchr(letters, p[1]) : NULL;
        text += escape ? meant[escape - letters] : *p;
        p += escape != NULL;
    }
    TokenizerEncoder encoder;
    tokenizer_encode_init(&encoder, t, run->tokenizer_path.c_str());
    size_t n = tokenizer_encode(&encoder, text.data(), text.size(), true);
    run->sample_start.assign(encoder.ids, encoder.ids + n);
    tokenizer_encode_free(&encoder);
}

// With how many tokens a sample ends.
static size_t run_sample_end(const Run* run) { return run->opt.sample_length + (run->opt.prompt[0] ? run->sample_start.size() : 0); }

// Samples --sample-length tokens: after a prompt so many, or until the text ends; without one the start token counts, as in llm.c. A full context
// slides by half. The same seed gives the same text for the same weights.
template <class floatX>
static void run_sample(Run* run, GPT<floatX>* g) {
    const Options* o = &run->opt;
    Tokenizer* t = &run->tokenizer;
    std::vector<int> tokens = run->sample_start;
    std::vector<float> logits;
    uint64_t rng = o->sample_seed;
    const bool prompted = o->prompt[0] != 0;
    const size_t end = run_sample_end(run);
    int cached = 0, sampled = 0;
    const double begin = clock_ms();
    printf("generating:\n---\n");
    if (prompted) { for (int id : tokens) { tokenizer_print(t, stdout, id); } }
    while (tokens.size() < end && !run_told_to_end(run)) {
        run_note(run, "sampling", false);
        const int context = sample_context(tokens.size(), o->seq_len);
        if (context <= cached) { cached = 0; }  // it slid
        gpt_next_logits(g, tokens.data() + tokens.size() - context, context, &cached, &logits);
        int next = sample_softmax(logits.data(), g->config.vocab_size, random_f32(&rng), o->temperature, o->top_k);
        if (next < 0) { printf("(the logits are not finite)"); break; }
        sampled++;
        if (prompted && t->vocab_size != BYTE_VOCAB && next == (int)t->eot) { break; }
        tokens.push_back(next);
        if (t->ok) { tokenizer_print(t, stdout, next); } else { printf("%d ", next); }
        fflush(stdout);
    }
    tokenizer_print_end(t);
    printf("\n---\n");
    const double rate = sampled / (clock_ms() - begin) * 1e3;
    if (sampled) { printf("sampled %d tokens after %zu: %.*f tokens/s\n", sampled, run->sample_start.size(), rate < 10 ? 2 : 0, rate); }
    fflush(stdout);
}

// ---------------------------------------------------------------------------- [J] main loop

#define MAX_NONFINITE_IN_A_ROW 10  // such steps change nothing; so many of them will not heal

// Reports a step whose loss or norm is not finite, with the first FP8 tensor that shows it.
template <class floatX>
static void run_report_nonfinite(Run* run, GPT<floatX>* g, float loss, float norm, int operands) {
    char where[128] = "";
    if (g->fp8) {
        std::vector<unsigned> amax(g->scaling.count);
        cudaCheck(cudaMemcpy(amax.data(), g->scaling.amax_step, amax.size() * sizeof(unsigned), cudaMemcpyDeviceToHost));
        int slot = fp8_scaling_find_nonfinite(&g->scaling, amax.data());
        char name[48];
        if (slot >= 0) { snprintf(where, sizeof(where), ", first seen in %s", fp8_slot_name(&g->scaling, slot, name)); }
    }
    require(run->opt.on_nonfinite == OPT_NONFINITE_SKIP, "--on-nonfinite skip goes on without such steps; lower --learning-rate, or try --dtype bfloat16; the last checkpoint is intact",
            "step %d: loss %g, gradient norm %g, %d FP8 operands hold NaN or inf%s", run->step + 1, loss, norm, operands, where);
    printf("skipping update at step %d: loss %g, gradient norm %g, %d FP8 operands: not finite%s\n", run->step + 1, loss, norm, operands, where);
    require(run->nonfinite_in_a_row < MAX_NONFINITE_IN_A_ROW, "lower --learning-rate, or try --dtype bfloat16; the last checkpoint is intact",
            "%d steps in a row were not finite: the run has diverged", run->nonfinite_in_a_row);
}

// Is the report of what FP8 does due after this many steps: to be printed, written, given to the guard?
typedef struct { bool print, log, guard; } Fp8Due;
static Fp8Due run_fp8_due(const Run* run, int step) {
    const Options* o = &run->opt;
    auto due = [&](int every) { return every > 0 && step % every == 0; };
    return {due(o->fp8_stats_every), due(o->fp8_log_every) && o->output_dir[0], due(o->fp8_guard_every)};
}

// Moves a linear layer to BF16, or back. With ZeRO-1 the other ranks' shards of a weight that travelled as codes are fetched first.
template <class floatX>
static void gpt_switch_linear(GPT<floatX>* g, int l, int i, bool in_bf16) {
    const ParamSpec* w = &g->spec[linear_weight[i]];
    Fp8Scaling* s = &g->scaling;
    if (in_bf16 && gpt_travels_as_codes(g, linear_weight[i], l)) {
        comm_fork(g->comm);
        comm_all_gather(g->comm, COMM_WEIGHTS, gpt_param(g, linear_weight[i], l), w->shard, dtype_of<floatX>());
        comm_end(g->comm);
        comm_join(g->comm);
    }
    fp8_scaling_switch(s, l, i, in_bf16, g->dev->stream);
    if (!in_bf16) { gpt_quantize_param(g, l, i); }
}

// The report: counts are those of the step that ended, over all ranks, so that all ranks decide the same.
template <class floatX>
static void run_report_fp8(Run* run, GPT<floatX>* g, Fp8Due due) {
    const Options* o = &run->opt;
    Fp8Scaling* s = &g->scaling;
    Fp8ScalingHost h;
    FileError error;
    const int n = fp8_training_slots(s);
    fp8_scaling_copy(s, &h);
    std::vector<double> sums(3 * n);  // saturated, flushed, elements
    for (int i = 0; i < n; i++) {
        sums[i] = (double)h.counts[2 * i];
        sums[n + i] = (double)h.counts[2 * i + 1];
        sums[2 * n + i] = (double)s->elements[i];
    }
    run_sum(run, "FP8 counts", sums.data(), 3 * n);
    auto shares = [&](int slot) { return fp8_shares(sums[slot], sums[n + slot], sums[2 * n + slot]); };
    if (due.print) { fp8_scaling_print(stdout, s, &h); }
    if (due.log && run->ranks.rank == 0) {
        std::string lines;
        for (int i = 0; i < n; i++) { lines += fp8_json_line(s, &h, i, shares(i), run->step); }
        if (!fp8_log_append(run->fp8_log.c_str(), lines, &error) && !run->warned_fp8_log) {
            fprintf(stderr, "WARNING: %s\nHINT:  %s; training goes on\n", error.message, error.hint);
            run->warned_fp8_log = true;
        }
    }
    char message[256];
    const char* broken = fp8_scaling_check(s, &h, 0, n, 0, message);
    if (broken) { fail("this is a defect of the program: please report it", "FP8 scaling state: %s", broken); }
    const Fp8Guard guard = {o->fp8_guard_saturated, o->fp8_guard_flushed};
    for (int k = 0; due.guard && k < fp8_tensors(s); k++) {
        const int l = k % s->layers, i = k / s->layers;
        char name[48], text[48], why[128];
        fp8_linear_text(s, k, text);
        if (run->guard_until[k] && run->step >= run->guard_until[k]) {
            gpt_switch_linear(g, l, i, false);
            run->guard_until[k] = 0;
            printf("fp8 guard: step %d: %s is in FP8 again\n", run->step, text);
        } else if (!s->in_bf16[k]) {
            for (int slot = k; slot < n; slot += fp8_tensors(s)) {
                if (!fp8_guard_trips(&guard, shares(slot), why)) { continue; }
                gpt_switch_linear(g, l, i, true);
                run->guard_until[k] = run->step + o->fp8_guard_steps;
                printf("fp8 guard: step %d: %s: %s: %s is in BF16 until step %d\n", run->step, fp8_slot_name(s, slot, name), why, text, run->guard_until[k]);
                break;
            }
        }
    }
    fp8_scaling_host_free(&h);
    fp8_scaling_clear_counts(s, g->dev->stream);
    cudaCheck(cudaStreamSynchronize(g->dev->stream));
}

// What the last step cost between the ranks.
static void run_print_comm(Run* run) {
    double busy, exposed;
    comm_times(&run->comm, &busy, &exposed);
    printf("sent by each rank and step, MiB:");
    for (int c = 0; c < NUM_COMM_CLASSES; c++) { printf(" %s %.3f%s", comm_class_names[c], run->comm.bytes[c] / 1048576.0, c + 1 < NUM_COMM_CLASSES ? "," : ""); }
    printf(" | collectives %.2f ms: %.2f hidden, %.2f exposed\n", busy, busy - exposed, exposed);
}

// Reads this rank's part of a micro-step. Returns how many sequences of it count; the rest only fills up.
static int run_read_micro(Run* run, int micro) {
    const Options* o = &run->opt;
    const int64_t B = o->batch_size, sequences = (int64_t)(run->total_tokens / o->seq_len);  // of an optimizer step
    const int64_t first = ((int64_t)micro * run->ranks.size + run->ranks.rank) * B;
    const int rows = (int)max((int64_t)0, min(sequences - first, B));
    run_read(run, o->overfit_single_batch ? &run->val : &run->train, (o->overfit_single_batch ? 0 : run->position) + (first < sequences ? first : 0), rows);
    return rows;
}

// --calibrate: measures the tensors of so many optimizer steps' batches, forward and backward, with the weights as they are, and writes what each of them needs.
template <class floatX>
static void run_calibrate(Run* run, GPT<floatX>* g) {
    const Options* o = &run->opt;
    cudaStream_t stream = g->dev->stream;
    const int C = g->config.channels, L = g->config.num_layers, N = g->B * g->T;
    Fp8Calibrator* c = new Fp8Calibrator();
    const size_t scales = max(fp8_calibrator_scale_bytes(N, 4 * C), fp8_calibrator_scale_bytes(4 * C, C));
    fp8_calibrator_init(c, L, (size_t)max(N, C) * 4 * C, gpt_noise_blocks(g), scales);
    g->calibrator = c;
    for (int batch = 0; batch < o->calibrate; batch++) {
        printf("calibrating: batch %d of %d\n", batch + 1, o->calibrate);
        fp8_calibrator_begin_batch(c, stream);
        for (int micro = 0; micro < run->accum; micro++) {
            run_note(run, "calibrating", false);
            if (run_read_micro(run, micro) == 0) { continue; }
            gpt_micro_step(g, run->inputs.data(), run->targets.data(), g->B, g->T, micro, run->accum + 1, run->total_tokens);  // none of them is the last: gradients stay here
            cudaCheck(cudaStreamSynchronize(stream));
        }
        if constexpr (sizeof(floatX) == 2) {
            for (int k = 0; batch == 0 && run->ranks.rank == 0 && k < L * NUM_LINEARS; k++) {  // weights are the same on all ranks, and stay
                const ParamSpec* w = &g->spec[linear_weight[k / L]];
                fp8_calibrator_measure(c, FP8_ROLE_W, k % L, k / L, gpt_param(g, linear_weight[k / L], k % L), w->rows, w->cols, stream);
            }
        }
        fp8_calibrator_end_batch(c, stream, [&](unsigned* amax_step, int n) {
            if (g->comm->size == 1) { return; }
            comm_fork(g->comm);
            comm_all_reduce_max(g->comm, COMM_SCALES, amax_step, n);
            comm_end(g->comm);
            comm_join(g->comm);
        });
        run->position += run->total_tokens / o->seq_len;
    }
    std::vector<Fp8Measured> all = fp8_calibrator_read(c), others(run->ranks.size);
    for (size_t i = 0; run->ranks.size > 1 && i < all.size(); i++) {
        control_all_gather(run->control, "calibration", &all[i], (int)sizeof(all[i]), others.data(), 0);
        all[i] = others[0];
        for (int r = 1; r < run->ranks.size; r++) { fp8_measured_merge(&all[i], &others[r]); }
    }
    bool may[NUM_FP8_RECIPES], any = false;
    for (int r = 0; r < NUM_FP8_RECIPES; r++) { any |= may[r] = fp8_recipe_runs(&fp8_recipes[r], g->dev->capability / 10, g->dev->capability % 10) && fp8_recipes[r].cuda <= CUDART_VERSION; }
    for (int r = 0; !any && r < NUM_FP8_RECIPES; r++) { may[r] = true; }  // a GPU without FP8 can still say what others should use
    const Fp8Advice advice = fp8_advise(all, L, C, may);
    char note[256];
    snprintf(note, sizeof(note), "%d batches of %llu tokens in micro-steps of %d x %d, weights of step %d, on %.80s", o->calibrate, (unsigned long long)run->total_tokens, g->B, g->T, run->step,
             run->dev.props.name);
    const std::string path = o->calibration_file[0] ? o->calibration_file : std::string(o->output_dir) + "/calibration.tsv", text = fp8_calibration_text(&advice, all, note);
    if (run->ranks.rank == 0) {
        AtomicFile file;
        FileError error;
        fileCheck(atomic_file_open(&file, path.c_str(), text.size(), &error) && atomic_file_write(&file, text.data(), text.size(), &error) && atomic_file_commit(&file, &error), &error);
    }
    for (int r = 0; r < NUM_FP8_RECIPES; r++) { printf("recipe %-8s %d of %d linear layers need BF16\n", fp8_recipes[r].name, advice.in_bf16[r], L * NUM_LINEARS); }
    printf("calibration written to %s; train with --fp8-recipe %s --fp8-calibration %s\n", path.c_str(), fp8_recipes[advice.recipe].name, path.c_str());
    g->calibrator = NULL;
    fp8_calibrator_free(c);
    delete c;
}

// One optimizer step: accum micro-steps, then the update unless it is to be skipped; prints and logs.
template <class floatX>
static void run_train_step(Run* run, GPT<floatX>* g) {
    const Options* o = &run->opt;
    const double begin = clock_ms();
    const int B = g->B, T = g->T;
    const Fp8Due due = g->fp8 ? run_fp8_due(run, run->step + 1) : Fp8Due();
    if (g->fp8) {
        g->scaling.count_on = due.print || due.log || due.guard;
        g->scaling.noise_on = due.print || due.log;
        g->scaling.traffic = 0;
    }
    comm_clear(&run->comm);
    for (int micro = 0; micro < run->accum; micro++) {
        run_note_disk(run, "reading data");
        run_read_micro(run, micro);
        run_note(run, "a training step", micro == run->accum - 1);
        gpt_micro_step(g, run->inputs.data(), run->targets.data(), B, T, micro, run->accum, run->total_tokens);
    }
    run->position += run->total_tokens / o->seq_len;
    float loss, norm, wishes[2] = {run_told_to_end(run) ? 1.0f : 0.0f, o->save_every_minutes > 0 && clock_ms() - run->saved_ms >= o->save_every_minutes * 60e3 ? 1.0f : 0.0f};
    int operands = 0;
    gpt_loss_and_norm(g, B * T, run->total_tokens, &loss, &norm, wishes, &operands);  // all ranks hear of it in the same step
    run->stop = run->stop || wishes[0] > 0.0f;
    run->save = wishes[1] > 0.0f;
    run_note(run, "an update", run->comm.size > 1 && o->zero_stage == 1);
    const float lr = learning_rate_get(&run->schedule, run->step);
    const double loss_z = outlier_detector_update(&run->loss_outliers, loss), norm_z = outlier_detector_update(&run->norm_outliers, norm);
    const bool finite = isfinite(loss) && isfinite(norm) && operands == 0;
    run->nonfinite_in_a_row = finite ? 0 : run->nonfinite_in_a_row + 1;
    if (!finite) {
        run_report_nonfinite(run, g, loss, norm, operands);
    } else if (outlier_detector_skips(loss_z, o->skip_loss_z)) {
        printf("skipping update due to loss z-score of %f\n", loss_z);
    } else if (outlier_detector_skips(norm_z, o->skip_grad_z)) {
        printf("skipping update due to grad z-score of %f\n", norm_z);
    } else {
        gpt_update(g, o, lr, norm, run->step);
    }
    cudaCheck(cudaStreamSynchronize(g->dev->stream));
    const double ms = clock_ms() - begin;
    run->step++;
    goodput_add(&run->goodput, GOODPUT_TRAINING, ms * 1e-3);
    run_note_disk(run, "writing the logs");
    goodput_tick(&run->goodput, run->step, unix_seconds());
    logger_log_train(&run->logger, run->step - 1, loss, lr, norm);
    run_note(run, "after an update", false);
    if (run->ranks.size > 1 && o->check_ranks_every && run->step % o->check_ranks_every == 0) { run_check_ranks(run, g); }
    float tokens_per_second = (float)(run->total_tokens / ms * 1e3);
    if (run->ms_count++ == 0) {  // it plans and warms up, and does not count in averages
        run->ms_first = ms;
        run->eta_printed_ms = begin;
    } else {
        run->ms_sum += ms;
        run->ema_tokens_per_second = 0.95f * run->ema_tokens_per_second + 0.05f * tokens_per_second;
        tokens_per_second = run->ema_tokens_per_second / (1.0f - powf(0.95f, (float)++run->ema_count));
    }
    if (run->step % o->log_every == 0 || run->step == run->num_steps) {
        const ModelHeader* c = &g->model;
        char mfu[32] = "n/a bf16 MFU";  // no peak is known: another GPU than mfu.h has, or the CPU device
        const double percent = sizeof(floatX) == 4 ? 200.0 : 100.0;  // TF32 has half the peak
        const double rate = run->total_tokens / ms * 1e3;
        if (g->dev->peak) { snprintf(mfu, sizeof(mfu), "%.1f%% bf16 MFU", percent * mfu_share(g->dev->peak, (double)g->num_parameters, c->num_layers, c->channels, o->seq_len, rate)); }
        printf("step %4d/%d | loss %7.6f (%+.2fz)| norm %6.4f (%+.2fz)| lr %.2e | %.2f ms | %s | %.0f tok/s\n", run->step, run->num_steps, loss, loss_z, norm, norm_z, lr, ms,
               mfu, tokens_per_second);  // llm.c's line, which other programs read: what is new has lines of its own
        if (run->step < run->num_steps && run->ms_count > 1 && clock_ms() - run->eta_printed_ms >= 20e3) {
            if (run->comm.size > 1) {
                printf("%18s", "");
                run_print_comm(run);
            }
            char eta[24], goodput[GOODPUT_TEXT_MAX];
            goodput_duration(eta, (run->num_steps - run->step) * (double)run->total_tokens / tokens_per_second);
            printf("%18sETA %s | %s\n", "", eta, goodput_text(&run->goodput, goodput));
            run->eta_printed_ms = clock_ms();
        }
        fflush(stdout);
    }
    if (run->has_gpu_info && run->step % o->gpu_info_every == 0) { gpu_info_print(&run->gpu_info, stdout); }
    if (due.print || due.log || due.guard) { run_report_fp8(run, g, due); }
}

// The folder of a path, without its last part; "." if it has none.
static std::string folder_of(const std::string& path) {
    size_t slash = path.rfind('/');
    return slash == std::string::npos ? "." : path.substr(0, slash);
}

static void run_open_tokenizer(Run* run) {
    const Options* o = &run->opt;
    const bool named = o->tokenizer[0] != 0;
    for (std::string path : {named ? std::string(o->tokenizer) : folder_of(o->train_data) + "/tokenizer.bin", std::string("gpt2_tokenizer.bin")}) {
        if (tokenizer_init(&run->tokenizer, path.c_str())) { run->tokenizer_path = path; return; }
        require(!named, "check --tokenizer", "there is no tokenizer file '%s'", path.c_str());
    }
    if (o->sample_every || o->sample_only) {
        printf("---\nWARNING: no tokenizer found: neither '%s/tokenizer.bin' nor 'gpt2_tokenizer.bin'.\nSamples are printed as token ids. The scripts in data/ make it with the data.\n---\n",
               folder_of(o->train_data).c_str());
    }
}

static void run_open_gpu_info(Run* run) {
    if (run->opt.gpu_info_every <= 0) { return; }
    char reason[256] = "the CPU device has no such figures";
#ifndef GPT_CPU_DEVICE
    char bus_id[32];
    int device;
    cudaCheck(cudaGetDevice(&device));
    cudaCheck(cudaDeviceGetPCIBusId(bus_id, sizeof(bus_id), device));
    run->has_gpu_info = gpu_info_init(&run->gpu_info, bus_id, reason);
#endif
    if (!run->has_gpu_info) { fprintf(stderr, "note: --gpu-info-every prints nothing: %s\n", reason); }
}

static void run_open_data(Run* run, int vocab_size) {
    const Options* o = &run->opt;
    const DataOrder order = o->data_order == OPT_ORDER_LLMC ? DATA_ORDER_LLMC : DATA_ORDER_SEQUENCE;
    dataloader_init(&run->val, o->val_data, o->seq_len, vocab_size, false, o->seed, order, o->batch_size, 1);
    dataloader_init(&run->train, o->train_data, o->seq_len, vocab_size, true, o->seed, order, o->batch_size, run->order_ranks);
    uint64_t epoch = run->train.num_tokens / run->total_tokens;
    run->num_steps = o->max_steps >= 0 ? o->max_steps : (int)(epoch < 1 ? 1 : epoch > 1000000000 ? 1000000000 : epoch);
    run->schedule = {o->schedule, o->learning_rate, o->warmup_steps, run->num_steps, o->final_lr_fraction};
    if (run->train.num_sequences * (uint64_t)o->seq_len < run->total_tokens) {
        printf("note: an optimizer step takes %llu tokens, the training data has %llu in whole sequences: some repeat within a step\n", (unsigned long long)run->total_tokens,
               (unsigned long long)(run->train.num_sequences * o->seq_len));
    }
    if (run->val.num_sequences < (uint64_t)o->batch_size && o->val_steps != 0 && o->data_order == OPT_ORDER_SEQUENCE) {
        printf("note: the validation data has %llu sequences, fewer than --batch-size %d: some count twice\n", (unsigned long long)run->val.num_sequences, o->batch_size);
    }
    run->inputs.resize((size_t)o->batch_size * gpt_padded_seq_len(o->seq_len, o->dtype == OPT_DTYPE_FLOAT8));
    run->targets.resize(run->inputs.size());
}

// What --attention stands for here; what runs is what is recorded.
static void run_choose_attention(Run* run, DType x, int hs) {
    Options* o = &run->opt;
    char hint[128];
    snprintf(hint, sizeof(hint), x == DTYPE_F32 ? "use --dtype bfloat16 or float8, or --attention gemm" : "heads of 8 to %d, in steps of 8, would do; or use --attention gemm", FLASH_MAX_HEAD);
    require(o->attention != OPT_ATTENTION_FLASH || attention_flash_fits(x, hs), hint, "--attention flash: no kernel for heads of %d in %s", hs, x == DTYPE_F32 ? "float32" : "BF16");
    run->dev.attention = o->attention == OPT_ATTENTION_FLASH ? ATTENTION_FLASH : o->attention == OPT_ATTENTION_GEMM ? ATTENTION_GEMM : ATTENTION_AUTO;
    o->attention = attention_is_flash(&run->dev, x, hs) ? OPT_ATTENTION_FLASH : OPT_ATTENTION_GEMM;
}

// Says so if the model needs padding.
static void gpt_print_padding(const ModelHeader* c) {
    const int hs = gpt_padded_head_size(c);
    if (c->num_heads * hs == c->channels) { return; }
    printf("note: C %d with heads of %d channels is filled up with zeros to %d with heads of %d: a C that is a multiple of 16 with heads of a multiple of 8 wastes nothing\n", c->channels,
           c->channels / c->num_heads, c->num_heads * hs, hs);
}

// llm.c's parameter table from the device on, then what only this program has.
template <class floatX>
static void run_print_model(Run* run, GPT<floatX>* g, const char* origin) {
    const Options* o = &run->opt;
    const ModelHeader* c = &g->model;
    options_print_row(stdout, "device", "%s", run->dev.props.name);
    if (run->dev.peak) { options_print_row(stdout, "peak TFlops", "%.1f", run->dev.peak->bf16 / (sizeof(floatX) == 4 ? 2 : 1)); } else { options_print_row(stdout, "peak TFlops", "n/a"); }
    options_print_row(stdout, "precision", "%s", g->fp8 ? "FP8" : sizeof(floatX) == 2 ? "BF16" : run->dev.tf32 ? "TF32" : "FP32");
    options_print_rule(stdout);
    options_print_row(stdout, "weight init method", "%s", run->resumed_step >= 0 ? "intermediate checkpoint" : origin);
    options_print_row(stdout, "max_sequence_length T", "%d", c->max_seq_len);
    options_print_row(stdout, "vocab_size V", "%d", c->vocab_size);
    options_print_row(stdout, "padded_vocab_size Vp", "%d", c->padded_vocab_size);
    options_print_row(stdout, "num_layers L", "%d", c->num_layers);
    options_print_row(stdout, "num_heads NH", "%d", c->num_heads);
    options_print_row(stdout, "channels C", "%d", c->channels);
    options_print_row(stdout, "num_parameters", "%llu", (unsigned long long)g->num_parameters);
    options_print_rule(stdout);
    if (!o->sample_only) {
        options_print_row(stdout, "train_num_batches", "%d", run->num_steps);
        options_print_row(stdout, "val_num_batches", "%llu", (unsigned long long)run_val_batches(run));
        options_print_rule(stdout);
        options_print_row(stdout, "run hellaswag", "%s", run->has_eval ? "yes" : "no");
        options_print_rule(stdout);
    }
    if (o->zero_stage == 0) { printf("| Zero Optimization is disabled                                              |\n"); }
    if (o->zero_stage >= 2) { printf("| Disabling Zero Optimization, Zero Stage2 and Stage3 are not yet supported  |\n"); }
    options_print_row(stdout, "num_processes", "%d", run->ranks.size);
    options_print_row(stdout, "zero_stage", "%d", o->zero_stage >= 2 ? 0 : o->zero_stage);
    options_print_rule(stdout);
    if (!o->sample_only) { options_print_row(stdout, "tokens", "train %lld, val %lld", (long long)run->train.num_tokens, (long long)run->val.num_tokens); }
    options_print_rest(o, stdout);
    printf("num_parameters: %llu => bytes: %llu\n", (unsigned long long)g->num_parameters, (unsigned long long)(g->num_parameters * sizeof(floatX)));
    printf("allocated %llu MiB for model parameters\n", (unsigned long long)(g->num_parameters * sizeof(floatX) >> 20));
    if (!o->sample_only) {
        printf("batch_size B=%d * seq_len T=%d * num_processes=%d and total_batch_size=%llu\n=> setting grad_accum_steps=%d\n", g->B, o->seq_len, run->ranks.size,
               (unsigned long long)run->total_tokens, run->accum);
    }
    if (!o->sample_only) {
        size_t state = 0;  // elements
        for (int p = 0; p < NUM_PARAMS; p++) { state += g->spec[p].layers * g->spec[p].state_stride; }
        const size_t m = state * moment_m_bytes(g->moment_type), v = state * moment_v_bytes(g->moment_type);
        printf("allocating %zu MiB for parameter gradients\nallocating %zu MiB for activations\n", run->dev.allocated[MEM_GRADIENTS] >> 20,
               (run->dev.allocated[MEM_ACTIVATIONS] + run->dev.allocated[MEM_SCRATCH]) >> 20);
        printf("allocating %zu MiB for AdamW optimizer state m\nallocating %zu MiB for AdamW optimizer state v\n", m >> 20, v >> 20);
        if (g->has_master) { printf("allocating %zu MiB for master copy of params\n", state * sizeof(float) >> 20); }
    }
    const size_t MiB = 1 << 20, sequence_bytes = (run->dev.allocated[MEM_ACTIVATIONS] + run->dev.allocated[MEM_SCRATCH]) / g->B;
    size_t free_bytes = 0, all_bytes = 0;
    cudaCheck(cudaMemGetInfo(&free_bytes, &all_bytes));
    printf("device memory usage: %zu MiB / %zu MiB\n", (all_bytes - free_bytes) / MiB, all_bytes / MiB);
    printf("memory per sequence: %zu MiB\n -> estimated maximum batch size: %zu\n", sequence_bytes / MiB, g->B + free_bytes / (sequence_bytes ? sequence_bytes : 1));
    device_print_memory(&run->dev, stdout);
    gpt_print_padding(c);
    if (g->T < c->max_seq_len && !o->sample_only) { printf("note: --seq-len %d is shorter than the model's %d positions; those beyond are not trained\n", o->seq_len, c->max_seq_len); }
    fflush(stdout);
}

// What a calibration says of each linear layer, in the recipe that runs.
template <class floatX>
static void run_apply_calibration(Run* run, GPT<floatX>* g, const Fp8Calibration* c) {
    const Options* o = &run->opt;
    const bool keep[3] = {o->fp8_format_x != OPT_FORMAT_RECIPE, false, o->fp8_format_dy != OPT_FORMAT_RECIPE};
    const int in_bf16 = fp8_calibration_apply(&g->scaling, c, keep), n = fp8_training_slots(&g->scaling);
    require(in_bf16 >= 0, "leave --fp8-format-x and --fp8-format-dy to the calibration", "with '%s' the input of a linear layer and its gradient would both be E5M2", o->fp8_calibration);
    int e5m2 = 0;
    for (int i = 0; i < n; i++) {
        const int k = i % fp8_tensors(&g->scaling);
        e5m2 += k < g->scaling.layers * NUM_LINEARS && !g->scaling.in_bf16[k] && fp8_slot_format(&g->scaling, i) == FP8_E5M2;
    }
    printf("calibration %s: %d of %d linear layers stay in BF16; of the other tensors %d are E5M2, the rest E4M3\n", o->fp8_calibration, in_bf16, g->scaling.layers * NUM_LINEARS, e5m2);
    if (g->fp8_head) { printf("note: a calibration says nothing of the head, which --fp8-head multiplies in FP8\n"); }
    if (c->recipe != g->scaling.recipe->name) {
        printf("note: the calibration recommends --fp8-recipe %s, and this run uses %s\n", c->recipe.c_str(), g->scaling.recipe->name);
    }
}

// --plan: what each GPU will hold, by class.
static void run_print_plan(const Run* run, const ModelHeader* c, const size_t bytes[NUM_MEM_CLASSES]) {
    const Options* o = &run->opt;
    const double MiB = 1 << 20, N = (double)o->batch_size * o->seq_len;
    size_t total = 0, free_bytes = 0, all_bytes = 0;
    gpt_print_padding(c);
    printf("device memory of each process, MiB (L %d, C %d, B %d, T %d, %d process%s):\n", c->num_layers, c->channels, o->batch_size, o->seq_len, run->ranks.size, run->ranks.size > 1 ? "es" : "");
    for (int i = 0; i < NUM_MEM_CLASSES; i++) {
        printf("  %-20s %10.1f\n", mem_class_names[i], bytes[i] / MiB);
        total += bytes[i];
    }
    cudaCheck(cudaMemGetInfo(&free_bytes, &all_bytes));
    const double each = bytes[MEM_ACTIVATIONS] / N / c->num_layers;
    printf("  %-20s %10.1f\nactivations a token and layer, bytes: %.0f (%.2f C)\n", "total", total / MiB, each, each / c->channels);
    printf("%s has %.1f of %.1f MiB free: %s\n", run->dev.props.name, free_bytes / MiB, all_bytes / MiB, total - bytes[MEM_WORKSPACE] <= free_bytes ? "it fits" : "it does NOT fit");
}

// Everything after the precision is known: model, data, loop. found: the checkpoint to resume from (step -1: none).
template <class floatX>
static void run_main(Run* run, bool fp8) {
    Options* o = &run->opt;
    GPT<floatX> gpt, *g = &gpt;
    Snapshot<floatX> own = {}, *snapshot = &own;
    FileError error;
    ModelFile file;
    char model_path[FILE_PATH_MAX] = "";
    if (run->resumed_step >= 0) { checkpoint_model_path(model_path, o->output_dir, run->resumed_step); }
    else if (!gpt_sizes_given(o) && strlen(o->model) > 4 && !strcmp(o->model + strlen(o->model) - 4, ".bin")) { snprintf(model_path, sizeof(model_path), "%s", o->model); }
    ModelHeader config;
    if (model_path[0]) {
        require(options_is_set(o, "model") || run->resumed_step >= 0 || access(model_path, F_OK) == 0,
                "without options this is llm.c's default run. 'make train' is the quick start, --help lists the options; a new model: --model d12, or --layers, --channels and --heads; "
                "dev/eval/hf_gpt2.py imports GPT-2",
                "there is no '%s', which --model (-e) names unless it is given", model_path);
        fileCheck(model_file_open(&file, model_path, gpt_count_parameters, &error), &error);
        config = file.header;
        const struct { const char* name; int given, found; } sizes[] = {
            {"layers", o->layers, config.num_layers}, {"channels", o->channels, config.channels}, {"heads", o->heads, config.num_heads}, {"vocab-size", o->vocab_size, config.vocab_size}};
        for (auto& s : sizes) {
            require(!s.given || s.given == s.found, "leave the option out: the sizes are in the file", "--%s %d does not fit '%s', which has %d", s.name, s.given, model_path, s.found);
        }
    } else {
        config = gpt_config_from_options(o, run->tokenizer.ok ? (int)run->tokenizer.vocab_size : 0);
    }
    if (run->tokenizer.ok && (int)run->tokenizer.vocab_size > config.vocab_size) {
        require(!o->tokenizer[0] && !o->prompt[0], "the tokenizer and the model must belong together", "the tokenizer '%s' has %u tokens, the model only %d", run->tokenizer_path.c_str(),
                run->tokenizer.vocab_size, config.vocab_size);
        printf("note: the tokenizer '%s' has %u tokens, the model only %d: it is not used\n", run->tokenizer_path.c_str(), run->tokenizer.vocab_size, config.vocab_size);
        tokenizer_free(&run->tokenizer);
    }
    if (o->sample_only && !options_is_set(o, "seq_len")) { o->seq_len = fp8 && config.max_seq_len >= 16 ? config.max_seq_len / 16 * 16 : config.max_seq_len; }
    gpt_check_config(&config, o->batch_size, o->seq_len, fp8 || o->calibrate);
    run_choose_attention(run, dtype_of<floatX>(), gpt_padded_head_size(&config));
    require(!o->calibrate || o->seq_len % 16 == 0, "choose a multiple of 16", "--calibrate measures tensors as float8 has them: --seq-len %d is not a multiple of 16", o->seq_len);
    const bool masters = o->master_dtype == OPT_MASTER_FLOAT32 && !o->sample_only;
    const MomentType moments = o->moment_dtype == OPT_MOMENT_FLOAT8 ? MOMENT_F8 : o->moment_dtype == OPT_MOMENT_BFLOAT16 ? MOMENT_BF16 : MOMENT_F32;
    const Fp8Settings settings = fp8 ? fp8_settings_from_options(o) : Fp8Settings();
    const bool samples = o->sample_every || o->sample_only;
    if (o->plan) {
        size_t bytes[NUM_MEM_CLASSES];
        gpt_count_memory<floatX>(bytes, &run->dev, &run->comm, &config, fp8, &settings, masters, o->zero_stage, moments, o->fp8_wgrad == OPT_WGRAD_BFLOAT16, fp8 && o->fp8_activations,
                                 samples, o->batch_size, o->seq_len, o->recompute);
        run_print_plan(run, &config, bytes);
        return;
    }
    run_note_disk(run, "opening the data");
    if (!o->sample_only) { run_open_data(run, config.vocab_size); }
    if (!o->sample_only) { run_open_eval(run, config.vocab_size); }
    if (samples) { run_open_prompt(run, config.vocab_size); }

    Fp8Calibration calibration = {"", {}, 0};
    if (fp8 && o->fp8_calibration[0]) {
        fileCheck(fp8_calibration_read(&calibration, o->fp8_calibration, config.num_layers, config.channels, settings.recipe, &error), &error);
    }
    if (run->ranks.size > 1) {  // what the options stand for here: files may differ between machines
        char text[280];
        snprintf(text, sizeof(text), "dtype %d, L %d, C %d, NH %d, V %d, maxT %d, data %016llx, %016llx, questions %d, steps %d, from %d, calibration %016llx", o->dtype, config.num_layers,
                 config.channels, config.num_heads, config.vocab_size, config.max_seq_len, o->sample_only ? 0ull : (unsigned long long)dataloader_digest(&run->train),
                 o->sample_only ? 0ull : (unsigned long long)dataloader_digest(&run->val), run->has_eval, run->num_steps, run->resumed_step, (unsigned long long)calibration.digest);
        control_agree(run->control, "model and data", text, 0);
    }
    run_note(run, "starting", false);
    gpt_init(g, &run->dev, &run->comm, &config, fp8, &settings, masters, o->zero_stage);
    comm_reserve(&run->comm, gpt_largest_linear(g));
    g->gelu_fusion = fp8 || o->calibrate ? 0 : o->gelu_fusion;
    g->fp8_wgrad_bf16 = fp8 && o->fp8_wgrad == OPT_WGRAD_BFLOAT16;
    g->fp8_guarded = fp8 && o->fp8_guard_every > 0;
    g->fp8_activations = fp8 && o->fp8_activations;
    g->samples = samples;
    g->fp8_fusion = o->fp8_fusion;
    if (o->fp8_activations && !fp8) { printf("note: --fp8-activations does nothing: --dtype auto is bfloat16 on this device\n"); }
    if (fp8) { gpt_bf16_layers(g, o->fp8_bf16_layers); }
    if (calibration.digest) { run_apply_calibration(run, g, &calibration); }
    run->guard_until.assign(fp8 ? fp8_tensors(&g->scaling) : 0, 0);
    g->moment_type = moments;
    if (!o->sample_only) { gpt_alloc_training(g); }
    gpt_alloc_activations(g, o->batch_size, o->seq_len, o->recompute);
    run_print_model(run, g, model_path[0] ? model_path : gpt_sizes_given(o) ? "random" : o->model);
    if (!o->sample_only) { gpt_plan(g); }
    if (samples) {
        gpt_plan_sampling(g, o->seq_len, run->sample_start.size(), run_sample_end(run));
    }
    if (model_path[0]) { run_note_disk(run, "loading the model"); }
    if (model_path[0]) { gpt_load_model(g, &file); }
    else if (o->init == OPT_INIT_FAST) { gpt_init_fast(g, o->seed); }
    else { gpt_init_llmc(g, (uint32_t)(o->seed ^ (o->seed >> 32))); }  // the generator takes 32 bits
    if (run->resumed_step >= 0 && !o->sample_only) {
        run_note_disk(run, "loading the optimizer's state");
        run_load_state(run, g);
    }
    run_note(run, "starting", false);
    if (!model_path[0]) { gpt_masters_from_params(g); }
    if (model_path[0]) { model_file_close(&file); }
    gpt_quantize_weights(g);
    if (o->sample_only || o->calibrate) {
        if (o->calibrate) { run_calibrate(run, g); } else { run_sample(run, g); }
        gpt_free(g);
        return;
    }
    const char* log_folder = run->ranks.rank == 0 ? o->output_dir : NULL;
    const int log_step = o->resume ? (run->resumed_step < 0 ? 0 : run->resumed_step) : -1;
    run_note_disk(run, "opening the logs");
    fileCheck(logger_init(&run->logger, log_folder, log_step, &error), &error);
    if (fp8 && (o->fp8_log_every || o->fp8_stats_every)) { fp8_scaling_alloc_noise(&g->scaling, gpt_noise_blocks(g)); }
    if (fp8 && o->fp8_log_every && log_folder && log_folder[0]) {
        run->fp8_log = std::string(log_folder) + "/fp8.jsonl";
        fileCheck(fp8_log_cut(run->fp8_log.c_str(), log_step, &error), &error);
    }
    goodput_open(&run->goodput, log_folder, log_step, unix_seconds() - (clock_ms() - run->began_ms) * 1e-3);
    if (run->goodput.note[0]) { printf("note: %s\n", run->goodput.note); }

    if (o->output_dir[0]) { run_forecast_checkpoint(run, g, snapshot); }
    run_note(run, "starting", false);
    run->saved_ms = clock_ms();
    run->began_step = run->step;
    snapshot->damaged = run->damaged;
    if (o->output_dir[0] && !o->checkpoint_every && o->save_every_minutes == 0) {
        printf("note: without --checkpoint-every (-n) only a signal that ends the run writes a checkpoint into '%s'\n", o->output_dir);
    }
    goodput_add(&run->goodput, GOODPUT_LOADING, (clock_ms() - run->began_ms) * 1e-3);
    if (run->step >= run->num_steps) { printf("nothing to train: step %d of %d is reached already\n", run->step, run->num_steps); }
    for (;;) {
        error_context()->step = run->step;
        const double evaluation = clock_ms();
        const bool last = run->step >= run->num_steps, val_now = last || (o->val_every && run->step % o->val_every == 0);
        bool skipped = run->stop;  // what is due here, for a signal: the resumed run does it
        if (o->val_steps != 0 && val_now && !skipped) {
            float loss;
            skipped = !run_validate(run, g, &loss);
            if (!skipped) {
                printf("val loss %f\n", loss);
                run_note_disk(run, "writing the logs");
                logger_log_val(&run->logger, run->step, loss);
                run_note(run, "validation", false);
            }
        }
        if (run->has_eval && val_now && !skipped && (last || run->step > 0)) { skipped = !run_evaluate(run, g); }
        run->stop = skipped && (last || run->step > run->began_step);  // not before the first step: a restart must come along
        if (o->sample_every && run->ranks.rank == 0 && !skipped && (last || (run->step > 0 && run->step % o->sample_every == 0))) {
            run_note(run, "sampling", false);
            run_sample(run, g);
        }
        goodput_add(&run->goodput, GOODPUT_EVALUATING, (clock_ms() - evaluation) * 1e-3);
        const bool due = (last && o->output_dir[0] && o->save_every_minutes > 0) || (o->checkpoint_every && (last || (run->step > 0 && run->step % o->checkpoint_every == 0)));
        if ((due || run->save || (run->stop && o->output_dir[0])) && run->step != run->resumed_step) {
            run_begin_checkpoint(run, g, snapshot);
            run->save = false;
            if (last || run->stop) {
                require(run_finish_checkpoint(run, snapshot), "free disk space, then resume with --resume", "the last checkpoint could not be written");
                for (int each : {SIGTERM, SIGINT, SIGUSR1}) { signal(each, SIG_IGN); }  // launchers tell the others when the first has ended
            }
        }
        if (last && !(run->stop && val_now && (o->val_steps != 0 || run->has_eval))) { break; }
        if (run->stop) {
            printf("ending at step %d of %d, as a signal asked%s\n", run->step, run->num_steps, o->output_dir[0] ? "; go on with --resume" : "");
            run->exit_code = EXIT_SAVED;
            break;
        }
        run_train_step(run, g);
    }
    run_finish_checkpoint(run, snapshot);
    if (run->ms_count > 0 && run->comm.size > 1) { run_print_comm(run); }
    if (run->ms_count > 0 && fp8) {
        const double traffic = g->scaling.traffic / ((double)run->accum * g->B * g->T * g->config.num_layers);
        printf("to quantize and transpose, in the last step: %.1f bytes a token and layer (%.2f C)\n", traffic, traffic / g->config.channels);
    }
    goodput_end(&run->goodput, run->exit_code == EXIT_SAVED ? GOODPUT_SAVED : GOODPUT_DONE, run->step, unix_seconds());
    char goodput[GOODPUT_TEXT_MAX];
    if (run->ms_count > 0) {
        printf("%s\n", goodput_text(&run->goodput, goodput));
        printf("total average iteration time: %f ms\n", run->ms_count > 1 ? run->ms_sum / (run->ms_count - 1) : run->ms_first);  // last, as in llm.c
    }
    gpt_free(g);
}

// The whole program; main, but callable from tests.
static int trainer_main(int argc, char** argv) {
    Run* run = new Run();
    Options* o = &run->opt;
    FileError error;
    run->began_ms = clock_ms();
    error_context()->before_exit = profile_print_ring;
    signal(SIGXFSZ, SIG_IGN);  // a file size limit is then an error of the write, with a message
    setvbuf(stdout, NULL, _IOLBF, 0);
    error_context()->claim = run_claim_early;
    options_parse(o, argc, argv);
    if (o->output_dir[0] && !o->sample_only && !o->calibrate) {  // one that comes while loading counts after the first step
        for (int each : {SIGTERM, SIGINT, SIGUSR1}) { signal(each, run_on_signal); }
    }
    run_meet(run);
#ifdef GPT_CPU_DEVICE
    device_init(&run->dev, 0);
#else
    device_init(&run->dev, run->ranks.local_rank);
    if (run->ranks.size > 1) {  // its memory and threads near its GPU
        char bus_id[32];
        int device, node;
        cudaCheck(cudaGetDevice(&device));
        cudaCheck(cudaDeviceGetPCIBusId(bus_id, sizeof(bus_id), device));
        ranks_bind_numa("/sys", bus_id, &node);
    }
#endif
    run_open_comm(run);
    run->dev.tf32 = o->tf32 && !run->dev.is_cpu;
    int dtype = o->dtype;
    if (dtype == OPT_DTYPE_AUTO) { dtype = device_has_fp8(&run->dev) ? OPT_DTYPE_FLOAT8 : OPT_DTYPE_BFLOAT16; }
    if (o->calibrate) { dtype = OPT_DTYPE_BFLOAT16; }  // so that no recipe's noise is in what is measured
    if (dtype == OPT_DTYPE_FLOAT8) {
        const Fp8Recipe* recipe = &fp8_recipes[o->fp8_recipe];
        const int major = run->dev.capability / 10, minor = run->dev.capability % 10;  // 0.0: the CPU device that plays no GPU
        char list[64], hint[160];
        const bool any = strcmp(fp8_recipe_list(major, minor, CUDART_VERSION, list), "none") != 0;
        snprintf(hint, sizeof(hint), any ? "here run: %s (--fp8-recipe); or use --dtype bfloat16" : "use --dtype bfloat16", list);
        require(fp8_recipe_runs(recipe, major, minor) && recipe->cuda <= CUDART_VERSION, hint, "%s has compute capability %d.%d, and this program was built with CUDA %d.%d; float8 with "
                "--fp8-recipe %s needs %s", run->dev.props.name, run->dev.props.major, run->dev.props.minor, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10, recipe->name, recipe->needs);
    }
    o->dtype = dtype;  // what runs is what is printed and recorded: a resume elsewhere shows the difference
    if (dtype != OPT_DTYPE_FLOAT8 && o->fp8_head) { fprintf(stderr, "note: --fp8-head does nothing without --dtype float8\n"); }
    if (dtype != OPT_DTYPE_FLOAT8 && o->fp8_calibration[0]) { fprintf(stderr, "note: --fp8-calibration does nothing without --dtype float8\n"); }
    if (dtype != OPT_DTYPE_FLOAT8 && o->fp8_stats_every) { fprintf(stderr, "note: --fp8-stats-every does nothing without --dtype float8\n"); }
    if (dtype == OPT_DTYPE_FLOAT8 && o->gelu_fusion) { fprintf(stderr, "note: --gelu-fusion does nothing in float8: the GELU kernel takes the scale of what it makes\n"); }
    run->resumed_step = -1;
    run->folder_lock = -1;
    run->order_ranks = run->ranks.size;
    if (o->output_dir[0] && !o->sample_only && run->ranks.rank == 0) {
        int removed = 0;
        bool created = access(o->output_dir, F_OK) != 0;
        fileCheck(file_make_folder(o->output_dir, &error), &error);
        if (created) { printf("created directory: %s\n", o->output_dir); }
        fileCheck(file_lock_folder(o->output_dir, &run->folder_lock, &error), &error);
        fileCheck(checkpoint_clean(o->output_dir, &removed, &error), &error);
        if (removed) { printf("removed %d temporary files of an interrupted run\n", removed); }
    }
    if (o->output_dir[0] && !o->sample_only) { run_check_folder(run); }
    run_note_disk(run, "looking for a checkpoint");
    if (o->resume) {
        CheckpointFound found;
        auto agree = [&] { control_agree(run->control, "the checkpoint to resume from", std::to_string(found.step).c_str(), 0); };
        fileCheck(checkpoint_find_latest(o->output_dir, gpt_count_parameters, &found, &error), &error);
        agree();
        for (bool ok = found.step < 0; !ok;) {  // reads all of it, each rank a part; one that is damaged gives way to an older one
            error.message[0] = 0;
            ok = ranks_all_ok(run->control, run->ranks.size, "verified", checkpoint_verify(o->output_dir, found.step, run->ranks.rank, run->ranks.size, &error));
            if (ok) { break; }
            if (error.message[0]) { fprintf(stderr, "WARNING: the checkpoint of step %d is damaged: %s\n", found.step, error.message); }
            run->damaged.push_back(found.step);
            std::string skipped = found.skipped + "checkpoint of step " + std::to_string(found.step) + " is damaged\n";
            fileCheck(checkpoint_find_before(o->output_dir, found.step, gpt_count_parameters, &found, &error), &error);
            found.skipped = skipped + found.skipped;
            agree();
            ok = found.step < 0;
        }
        printf("%s", found.skipped.c_str());  // whole lines
        require(found.step >= 0 || found.skipped.empty(), "repair them, or remove the folder to start afresh", "'%s' holds checkpoints, but none that is whole", o->output_dir);
        run->resumed_step = found.step;
        require(found.step >= 0 || !o->sample_only, "name the folder of a run", "'%s' holds no checkpoint to sample from", o->output_dir);
        printf(found.step >= 0 ? "resuming from step %d in %s\n" : "no checkpoint found to resume from; starting afresh\n", found.step, o->output_dir);
        if (found.step >= 0 && !o->sample_only) { run_adopt_checkpoint(run, found.num_ranks); }
    } else if (o->output_dir[0] && !o->sample_only && run->ranks.rank == 0) {
        std::vector<CheckpointEntry> found;
        fileCheck(checkpoint_list(o->output_dir, &found, &error), &error);
        require(found.empty(), "continue that run with --resume, or choose another --output-dir", "'%s' holds files of a checkpoint of step %d, which a new run would mix with its own",
                o->output_dir, found[0].step);
        std::string log = std::string(o->output_dir) + "/main.log";
        if (!o->calibrate && access(log.c_str(), F_OK) == 0 && rename(log.c_str(), (log + ".old").c_str()) == 0) { printf("main.log of an earlier run is now main.log.old\n"); }
    }
    run_note(run, "starting", false);
    run_plan_batch(run);
    options_print_llmc(o, stdout, (long long)run->total_tokens);
    run_open_gpu_info(run);
    run_open_tokenizer(run);
    if (dtype == OPT_DTYPE_FLOAT32) { run_main<float>(run, false); } else { run_main<bf16>(run, dtype == OPT_DTYPE_FLOAT8); }
    tokenizer_free(&run->tokenizer);
    dataloader_free(&run->train);
    dataloader_free(&run->val);
    eval_loader_free(&run->eval);
    if (run->has_gpu_info) { gpu_info_free(&run->gpu_info); }
    control_watch_health(run->control, NULL, NULL);
    run_note(run, "ending", true);
    comm_free(&run->comm);
    device_free(&run->dev);
    error_context()->claim = NULL;
    error_context()->announce = NULL;
    error_context()->progress = NULL;
    control_finish(run->control);
#ifdef GPT_WITH_MPI
    int mpi = 0;
    MPI_Initialized(&mpi);
    if (mpi) { MPI_Finalize(); }
#endif
    if (run->folder_lock >= 0) { close(run->folder_lock); }
    const int exit_code = run->exit_code;
    delete run;
    return exit_code;
}

#ifndef TESTING
int main(int argc, char** argv) { return trainer_main(argc, argv); }
#endif

#endif
