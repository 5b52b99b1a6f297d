/* option_table.h - every command-line option: one row each, and nothing else to edit to add one
 *
 * OPT(field, letters, type, default, min, max, group, help)
 *   field    name in struct Options; --name on the command line, where _ and - are the same
 *   letters  llm.c's name without its dash ("b" for -b), "" if it has none; "pi|pm": two spellings, since llm.c's help and parser disagree
 *   type     INT, INT64, FLOAT (stored as float), BOOL, STRING, or ENUM (stored as int)
 *   min, max the range, both ends allowed; STRING: of the length in bytes; ENUM: min is CHOICES(list), max is 0; BOOL: 0, 1
 *   group    a heading of --help; the rows of a group stand together
 *   help     one sentence with units
 * From these rows llmc/options.h makes the struct, the defaults, the parser, the range checks, --help, the printed configuration, what a checkpoint
 * records, and the README's table. What one row cannot say (pairs of options) is in options_check below.
 * PRESET_TABLE has the rows of --preset: each sets options that the command line leaves alone.
 * A list of choices belongs to the module that acts on them (schedules: schedulers.h); those without one are here.
 * Tests: dev/test/test_options.cu */
#ifndef LLMC_OPTION_TABLE_H
#define LLMC_OPTION_TABLE_H

#include "llmc/fp8_recipes.h"
#include "llmc/schedulers.h"

// X(enumerator, "name|synonym|...")
#define OPT_DTYPE_CHOICES(X) \
    X(OPT_DTYPE_AUTO, "auto") X(OPT_DTYPE_FLOAT8, "float8|fp8") X(OPT_DTYPE_BFLOAT16, "bfloat16|bf16") X(OPT_DTYPE_FLOAT32, "float32|fp32")
#define OPT_MOMENT_CHOICES(X) X(OPT_MOMENT_FLOAT32, "float32|fp32") X(OPT_MOMENT_BFLOAT16, "bfloat16|bf16") X(OPT_MOMENT_FLOAT8, "float8|fp8")
#define OPT_MASTER_CHOICES(X) X(OPT_MASTER_BFLOAT16, "bfloat16|bf16|0") X(OPT_MASTER_FLOAT32, "float32|fp32|1")
#define OPT_ORDER_CHOICES(X) X(OPT_ORDER_SEQUENCE, "sequence") X(OPT_ORDER_LLMC, "llmc")
#define OPT_FORMAT_CHOICES(X) X(OPT_FORMAT_RECIPE, "recipe") X(OPT_FORMAT_E4M3, "e4m3") X(OPT_FORMAT_E5M2, "e5m2")
#define OPT_FAST_CHOICES(X) X(OPT_FAST_RECIPE, "recipe") X(OPT_FAST_OFF, "off") X(OPT_FAST_ON, "on")
#define OPT_HISTORY_CHOICES(X) X(OPT_HISTORY_MAX, "max") X(OPT_HISTORY_RECENT, "recent")
#define OPT_WGRAD_CHOICES(X) X(OPT_WGRAD_FLOAT8, "float8|fp8") X(OPT_WGRAD_BFLOAT16, "bfloat16|bf16")
#define OPT_ATTENTION_CHOICES(X) X(OPT_ATTENTION_AUTO, "auto") X(OPT_ATTENTION_GEMM, "gemm") X(OPT_ATTENTION_FLASH, "flash")
#define OPT_NONFINITE_CHOICES(X) X(OPT_NONFINITE_SKIP, "skip") X(OPT_NONFINITE_STOP, "stop")
#define OPT_INIT_CHOICES(X) X(OPT_INIT_LLMC, "llmc") X(OPT_INIT_FAST, "fast")
#define OPT_REDUCE_CHOICES(X) X(OPT_REDUCE_NCCL, "nccl") X(OPT_REDUCE_FLOAT32, "float32")
#define OPT_NCCL_CHOICES(X) X(OPT_NCCL_MPI, "mpi") X(OPT_NCCL_TCP, "tcp") X(OPT_NCCL_FS, "fs")

#define OPTION_CHOICE_ID(id, names) id,
enum { OPT_DTYPE_CHOICES(OPTION_CHOICE_ID) };
enum { OPT_MASTER_CHOICES(OPTION_CHOICE_ID) };
enum { OPT_MOMENT_CHOICES(OPTION_CHOICE_ID) };
enum { OPT_ORDER_CHOICES(OPTION_CHOICE_ID) };
enum { OPT_ATTENTION_CHOICES(OPTION_CHOICE_ID) };
enum { OPT_NONFINITE_CHOICES(OPTION_CHOICE_ID) };
enum { OPT_FORMAT_CHOICES(OPTION_CHOICE_ID) };
enum { OPT_FAST_CHOICES(OPTION_CHOICE_ID) };
enum { OPT_HISTORY_CHOICES(OPTION_CHOICE_ID) };
enum { OPT_WGRAD_CHOICES(OPTION_CHOICE_ID) };
enum { OPT_INIT_CHOICES(OPTION_CHOICE_ID) };
enum { OPT_NCCL_CHOICES(OPTION_CHOICE_ID) };
enum { OPT_REDUCE_CHOICES(OPTION_CHOICE_ID) };

#define OPTION_CHOICE_TEXT(id, names) names ","
#define CHOICES(list) list(OPTION_CHOICE_TEXT)

// X(name, what it sets: SET("field=value") each, what it is for, its trade-off). --preset NAME sets what the command line does not, wherever it stands there.
#define SET(assignment) assignment "\0"
#define PRESET_TABLE(X) \
    X("pretrain",     "", "training from scratch", "the defaults: linear layers in FP8, the head and all else in BF16, moments in FP32") \
    X("memory",       SET("moment_dtype=float8") SET("fp8_activations=1"), "a larger model or batch in the same memory", "moments of 3 bytes a parameter instead of 8, activations kept in 1 byte instead of 2: some noise, and attention's forward is computed twice") \
    X("finetune-fp8", SET("moment_dtype=float8") SET("fp8_activations=1") SET("fp8_head=1"), "fine-tuning and small models: all in FP8 that can be", "the least memory and traffic, the most noise; compare the loss with pretrain's") \
    X("safe",         SET("fp8_bf16_layers=0,-1") SET("fp8_wgrad=bfloat16"), "a run that must not fail, or to find out whether FP8 is at fault", \
      "first and last layer, the head and all gradients of weights in BF16: slower, and more memory")
#define PRESET_CHOICE(name, sets, purpose, tradeoff) name ","
#define PRESET_CHOICES PRESET_TABLE(PRESET_CHOICE)

#define OPTION_TABLE(OPT) \
    /*  field                 letters type   default       min, max       group          help */ \
    OPT(train_data,           "i",  STRING, "dev/data/tinyshakespeare/tiny_shakespeare_train.bin", 1, 4095, "data", "training token shards, a glob pattern (quote it)") \
    OPT(val_data,             "j",  STRING, "dev/data/tinyshakespeare/tiny_shakespeare_val.bin", 1, 4095, "data", "validation token shards, a glob pattern (quote it)") \
    OPT(tokenizer,            "",   STRING, "",            0, 4095,       "data",        "tokenizer file; empty: tokenizer.bin beside the training data, else gpt2_tokenizer.bin") \
    OPT(data_order,           "",   ENUM,   OPT_ORDER_SEQUENCE, CHOICES(OPT_ORDER_CHOICES), 0, "data", "order of the training data; sequence: every T-token sequence once an epoch, permuted by (seed, epoch), whatever the batch size; llmc: the order of llm.c, which depends on the batch size") \
    OPT(overfit_single_batch, "a",  BOOL,   0,             0, 1,          "data",        "train on the first total-batch-tokens of the validation data again and again") \
    OPT(model,                "e",  STRING, "gpt2_124M_bf16.bin", 1, 4095, "model",     "a checkpoint (.bin) or a descriptor: d6, d12, d24, d36, d48, d60, gpt3:c768 ...") \
    OPT(layers,               "",   INT,    0,             0, 1024,       "model",       "number of layers (L); 0: as the descriptor says") \
    OPT(heads,                "",   INT,    0,             0, 1024,       "model",       "number of attention heads (NH); 0: as the descriptor says") \
    OPT(channels,             "",   INT,    0,             0, 65536,      "model",       "width of the residual stream (C); 0: as the descriptor says") \
    OPT(vocab_size,           "",   INT,    0,             0, 65536,      "model",       "number of tokens (V); 0: as the tokenizer or the descriptor says") \
    OPT(init,                 "",   ENUM,   OPT_INIT_LLMC, CHOICES(OPT_INIT_CHOICES), 0, "model", "initial weights of a new model; llmc: llm.c's values (MT19937), fast: a hash on the device, for benchmarks") \
    OPT(batch_size,           "b",  INT,    4,             1, 65536,      "training",    "sequences per GPU and micro-step (B)") \
    OPT(seq_len,              "t",  INT,    1024,          1, 1048576,    "training",    "tokens per sequence (T)") \
    OPT(total_batch_tokens,   "d",  INT64,  -1,            -1, 1099511627776, "training", "tokens per optimizer step over all GPUs, a multiple of T; -1: one micro-step") \
    OPT(max_steps,            "x",  INT,    -1,            -1, 1000000000, "training",   "optimizer steps of the whole run; -1: one epoch") \
    OPT(schedule,             "k",  ENUM,   SCHEDULE_COSINE, CHOICES(SCHEDULE_CHOICES), 0, "training", "learning rate schedule") \
    OPT(learning_rate,        "l",  FLOAT,  3e-4,          0, 100,        "training",    "peak learning rate") \
    OPT(warmup_steps,         "u",  INT,    0,             0, 1000000000, "training",    "steps of linear learning rate warmup") \
    OPT(final_lr_fraction,    "q",  FLOAT,  1.0,           0, 1,          "training",    "learning rate at the end as a fraction of the peak; 1: no decay") \
    OPT(weight_decay,         "c",  FLOAT,  0.0,           0, 100,        "training",    "AdamW weight decay of the matrices") \
    OPT(beta1,                "",   FLOAT,  0.9,           0, 0.99999,    "training",    "AdamW decay of the first moment") \
    OPT(beta2,                "",   FLOAT,  0.95,          0, 0.99999,    "training",    "AdamW decay of the second moment") \
    OPT(adam_eps,             "",   FLOAT,  1e-8,          1e-20, 1,      "training",    "AdamW epsilon") \
    OPT(grad_clip,            "",   FLOAT,  1.0,           0, 1e6,        "training",    "largest global gradient norm, above it gradients are scaled down; 0: no clipping") \
    OPT(on_nonfinite,         "",   ENUM,   OPT_NONFINITE_SKIP, CHOICES(OPT_NONFINITE_CHOICES), 0, "training", "a step whose loss, gradient norm or FP8 operands hold NaN or inf; skip: it changes nothing, ten in a row end the run; stop: it ends the run") \
    OPT(skip_loss_z,          "sl", FLOAT,  0.0,           0, 1e6,        "training",    "skip the update when the loss lies more standard deviations above its last 128 values; 0: never") \
    OPT(skip_grad_z,          "sg", FLOAT,  0.0,           0, 1e6,        "training",    "skip the update when the gradient norm lies more standard deviations above its last 128 values; 0: never") \
    OPT(seed,                 "",   INT64,  42,            0, 9007199254740991, "training", "seed of the initial weights, the data order and the stochastic rounding") \
    OPT(recompute,            "r",  INT,    1,             0, 3,          "training",    "recompute in backward, to save memory: 0 nothing, 1 GELU, 2 GELU and layernorm, 3 all of a layer but its input") \
    OPT(gelu_fusion,          "ge", INT,    0,             -1, 2,         "training",    "let the matrix products of bfloat16 and float32 apply GELU: 0 (or -1) no, 1 forward, 2 forward and backward") \
    OPT(attention,            "",   ENUM,   OPT_ATTENTION_AUTO, CHOICES(OPT_ATTENTION_CHOICES), 0, "training", "how attention is computed; flash: on tensor cores, scores in registers only, needs BF16 and heads of at most 128; gemm: matrix products and a softmax, some heads at once; auto: flash on a GPU where it can") \
    OPT(dtype,                "",   ENUM,   OPT_DTYPE_AUTO, CHOICES(OPT_DTYPE_CHOICES), 0, "precision", "precision of the matrix products; auto: float8 where the device has it, else bfloat16") \
    OPT(preset,               "",   ENUM,   0,             PRESET_CHOICES, 0,         "precision", "options for a common case, all at once (see the list of presets); the command line wins over them, whatever the order") \
    OPT(fp8_recipe,           "",   ENUM,   0,             RECIPE_CHOICES, 0,         "precision", "how float8 tensors are scaled; current: one scale a tensor, from its own largest value; delayed: from those of earlier steps; row: one a row; block: one for 128 values, weights 128 x 128; mx: one for 32") \
    OPT(fp8_format_x,         "",   ENUM,   OPT_FORMAT_RECIPE, CHOICES(OPT_FORMAT_CHOICES), 0, "precision", "format of the inputs of linear layers, instead of the recipe's; weights are always E4M3") \
    OPT(fp8_format_dy,        "",   ENUM,   OPT_FORMAT_RECIPE, CHOICES(OPT_FORMAT_CHOICES), 0, "precision", "format of their output gradients") \
    OPT(fp8_fast_fprop,       "",   ENUM,   OPT_FAST_RECIPE, CHOICES(OPT_FAST_CHOICES), 0, "precision", "fast accumulation in forward, instead of the recipe's: faster on 9.0, with partial sums of about 14 bits") \
    OPT(fp8_fast_dgrad,       "",   ENUM,   OPT_FAST_RECIPE, CHOICES(OPT_FAST_CHOICES), 0, "precision", "the same for gradients of inputs") \
    OPT(fp8_fast_wgrad,       "",   ENUM,   OPT_FAST_RECIPE, CHOICES(OPT_FAST_CHOICES), 0, "precision", "the same for gradients of weights") \
    OPT(fp8_wgrad,            "",   ENUM,   OPT_WGRAD_FLOAT8, CHOICES(OPT_WGRAD_CHOICES), 0, "precision", "what gradients of weights are multiplied from; bfloat16: inputs are made again in backward, not kept") \
    OPT(fp8_head,             "",   BOOL,   0,             0, 1,          "precision",   "the head's three products, logits and both gradients, are FP8 as well, by the same recipe") \
    OPT(fp8_bf16_layers,      "",   STRING, "",            0, 4095,       "precision",   "linear layers that stay in BF16: numbers of layers (-1: the last), names, or both: 0,-1,fcproj,3.qkv; head") \
    OPT(fp8_power_of_two,     "",   BOOL,   0,             0, 1,          "precision",   "--fp8-recipe block: scales are powers of two") \
    OPT(fp8_history,          "",   INT,    16,            1, FP8_HISTORY_MAX, "precision", "--fp8-recipe delayed: optimizer steps whose largest values count") \
    OPT(fp8_history_algorithm, "",  ENUM,   OPT_HISTORY_MAX, CHOICES(OPT_HISTORY_CHOICES), 0, "precision", "--fp8-recipe delayed: the largest of them, or the most recent") \
    OPT(fp8_margin,           "",   INT,    0,             0, FP8_MARGIN_MAX, "precision", "--fp8-recipe delayed: the scale is divided by 2^margin") \
    OPT(fp8_activations,      "",   BOOL,   0,             0, 1,          "precision",   "float8 keeps qkv, attention's output and the input of GELU for backward in one byte an element: 14 instead of 23 bytes a token, layer and channel") \
    OPT(master_dtype,         "w",  ENUM,   OPT_MASTER_BFLOAT16, CHOICES(OPT_MASTER_CHOICES), 0, "precision", "type of the master weights; bfloat16 rounds stochastically") \
    OPT(moment_dtype,         "",   ENUM,   OPT_MOMENT_FLOAT32, CHOICES(OPT_MOMENT_CHOICES), 0, "precision", "how AdamW's moments are kept: 8, 4 or 3 bytes a parameter; float8: first E4M3, second FP16, scaled by groups of 128") \
    OPT(tf32,                 "f",  BOOL,   1,             0, 1,          "precision",   "allow TF32 tensor cores in float32") \
    OPT(fp8_stats_every,      "",   INT,    0,             0, 1000000000, "precision",   "print what float8 does to each tensor every so many steps: amax, scale, shares that saturate and vanish, noise; 0: never") \
    OPT(fp8_log_every,        "",   INT,    0,             0, 1000000000, "precision",   "write the same to fp8.jsonl in the output folder every so many steps; 0: never") \
    OPT(fp8_fusion,           "",   BOOL,   1,             0, 1,          "precision",   "layernorm, attention, GELU and AdamW write FP8 codes themselves where the recipe allows it; the results are the same to the bit") \
    OPT(fp8_calibration,      "",   STRING, "",            0, 4095,       "precision",   "file of --calibrate that says which tensors are E4M3, which E5M2, which linear layers stay in BF16") \
    OPT(calibrate,            "",   INT,    0,             0, 1000000,    "precision",   "measure every tensor in so many batches of --total-batch-tokens, without an update, write what each needs, and end") \
    OPT(calibration_file,     "",   STRING, "",            0, 4000,       "precision",   "where --calibrate writes; empty: calibration.tsv in the output folder") \
    OPT(fp8_guard_every,      "",   INT,    0,             0, 1000000000, "precision",   "every so many steps, move linear layers with a tensor beyond a limit to BF16 for a while; 0: never") \
    OPT(fp8_guard_saturated,  "",   FLOAT,  0.001,         0, 1,          "precision",   "the guard's limit: share of a tensor that saturates") \
    OPT(fp8_guard_flushed,    "",   FLOAT,  0.1,           0, 1,          "precision",   "the guard's limit: share of a tensor that is flushed to zero") \
    OPT(fp8_guard_steps,      "",   INT,    1000,          1, 1000000000, "precision",   "optimizer steps that the guard keeps a layer in BF16") \
    OPT(val_every,            "v",  INT,    20,            -1, 1000000000, "evaluation",  "validate every so many steps; 0: only at the end") \
    OPT(val_steps,            "m",  INT,    20,            -1, 1000000000, "evaluation", "batches per validation; -1: all full batches of the set, 0: no validation") \
    OPT(sample_every,         "s",  INT,    20,            -1, 1000000000, "evaluation",  "print a sample every so many steps and at the end; 0: never") \
    OPT(sample_length,        "g",  INT,    64,            1, 1048576,    "evaluation",  "tokens of a sample: after a prompt so many new ones, without one the start token counts") \
    OPT(prompt,               "",   STRING, "",            0, 1048576,    "evaluation",  "text that samples continue (write a newline as \\n); empty: they start from the end-of-text token") \
    OPT(sample_only,          "",   BOOL,   0,             0, 1,          "evaluation",  "load the model, print one sample, end: needs no data") \
    OPT(temperature,          "",   FLOAT,  1.0,           0, 100,        "evaluation",  "temperature of samples; 0: always the likeliest token") \
    OPT(top_k,                "",   INT,    0,             0, 65536,      "evaluation",  "draw samples from so many of the likeliest tokens; 0: from all") \
    OPT(sample_seed,          "",   INT64,  1337,          1, 9007199254740991, "evaluation", "seed of samples") \
    OPT(hellaswag,            "h",  BOOL,   0,             0, 1,          "evaluation",  "answer the multiple-choice questions of --eval-data every --val-every steps and at the end") \
    OPT(eval_data,            "",   STRING, "dev/data/hellaswag/hellaswag_val.bin", 1, 4095, "evaluation", "questions with four answers in llm.c's format: HellaSwag, or MMLU and others written alike") \
    OPT(output_dir,           "o",  STRING, "",            0, 4000,       "checkpoints", "folder for the log and the checkpoints; empty: none are written") \
    OPT(checkpoint_every,     "n",  INT,    0,             -1, 1000000000, "checkpoints", "write a checkpoint every so many steps and at the end; 0: never") \
    OPT(checkpoint_keep,      "nk", INT,    0,             -1, 1000000000, "checkpoints", "keep only so many of the latest checkpoints; 0: all") \
    OPT(checkpoint_major_every, "nm", INT,  0,             -1, 1000000000, "checkpoints", "never delete the checkpoint of every so many steps; 0: no exception") \
    OPT(background_save,      "",   BOOL,   true,          0, 1,          "checkpoints", "copy the state to host memory and write it while training goes on; off, or where memory is short: training waits") \
    OPT(save_every_minutes,   "",   FLOAT,  0.0,           0, 100000,     "checkpoints", "write a checkpoint whenever so many minutes have passed since the last; 0: never") \
    OPT(resume,               "y",  BOOL,   0,             0, 1,          "checkpoints", "continue from the latest complete checkpoint in the output folder, if there is one") \
    OPT(zero_stage,           "z",  INT,    0,             0, 3,          "processes",   "ZeRO stage: 0 none, 1 shards the optimizer's state; one process has nothing to shard") \
    OPT(num_processes,        "pn", INT,    1,             1, 65536,      "processes",   "number of processes that train together") \
    OPT(process_rank,         "pr", INT,    0,             0, 65535,      "processes",   "number of this process, from 0") \
    OPT(gpus_per_node,        "pg", INT,    8,             1, 65536,      "processes",   "GPUs a machine has: process R uses GPU R modulo this") \
    OPT(nccl_init,            "pi|pm", ENUM, OPT_NCCL_MPI, CHOICES(OPT_NCCL_CHOICES), 0, "processes", "how processes find each other; mpi: as mpirun, torchrun or srun that started them says") \
    OPT(server_ip,            "ps", STRING, "",            0, 255,        "processes",   "address of process 0, for --nccl-init tcp") \
    OPT(fs_path,              "pf|pp", STRING, "",         0, 255,        "processes",   "folder that all processes see, for --nccl-init fs") \
    OPT(server_port,          "",   INT,    0,             0, 65535,      "processes",   "port of process 0, for --nccl-init tcp; 0: after the launcher's MASTER_PORT or job, else 12345") \
    OPT(grad_reduce,          "",   ENUM,   OPT_REDUCE_NCCL, CHOICES(OPT_REDUCE_CHOICES), 0, "processes", "how gradients are summed over GPUs; nccl: BF16 ones are rounded at every hop, float32: once, after exact sums of as many bytes") \
    OPT(join_seconds,         "",   INT,    60,            2, 86400,      "processes",   "how long processes wait at the start until all have joined") \
    OPT(watchdog_seconds,     "",   INT,    60,            2, 86400,      "processes",   "end the run, with a message, when a process is lost, or a process or its disk does not come along for so long") \
    OPT(check_ranks_every,    "",   INT,    100,           0, 1000000000, "processes",   "compare the weights of all processes every so many steps; 0: never") \
    OPT(gpu_info_every,       "lg", INT,    -1,            -1, 1000000000, "other",      "print utilization, clocks, power and temperature of the GPU every so many steps; -1: never") \
    OPT(plan,                 "",   BOOL,   0,             0, 1,          "other",       "print what the device's memory would hold, by class, and end") \
    OPT(log_every,            "",   INT,    1,             1, 1000000000, "other",       "print a progress line every so many steps")

// The first block of llm.c's parameter table: X(field, its name there, its format, value from `o` and `total_batch_tokens`).
#define LLMC_ROWS(X) \
    X(train_data,           "train data pattern",    "%s",   o->train_data) \
    X(val_data,             "val data pattern",      "%s",   o->val_data) \
    X(output_dir,           "output log dir",        "%s",   o->output_dir[0] ? o->output_dir : "NULL") \
    X(checkpoint_every,     "checkpoint_every",      "%d",   o->checkpoint_every) \
    X(resume,               "resume",                "%d",   o->resume) \
    X(batch_size,           "micro batch size B",    "%d",   o->batch_size) \
    X(seq_len,              "sequence length T",     "%d",   o->seq_len) \
    X(total_batch_tokens,   "total batch size",      "%lld", total_batch_tokens) \
    X(schedule,             "LR scheduler",          "%s",   option_choice_name(&option_specs()[OPTION_INDEX_schedule], o->schedule).c_str()) \
    X(learning_rate,        "learning rate (LR)",    "%e",   o->learning_rate) \
    X(warmup_steps,         "warmup iterations",     "%d",   o->warmup_steps) \
    X(final_lr_fraction,    "final LR fraction",     "%e",   o->final_lr_fraction) \
    X(weight_decay,         "weight decay",          "%e",   o->weight_decay) \
    X(skip_loss_z,          "skip update lossz",     "%f",   o->skip_loss_z) \
    X(skip_grad_z,          "skip update gradz",     "%f",   o->skip_grad_z) \
    X(max_steps,            "max_steps",             "%d",   o->max_steps) \
    X(val_every,            "val_loss_every",        "%d",   o->val_every) \
    X(val_steps,            "val_max_steps",         "%d",   o->val_steps) \
    X(sample_every,         "sample_every",          "%d",   o->sample_every) \
    X(sample_length,        "genT",                  "%d",   o->sample_length) \
    X(overfit_single_batch, "overfit_single_batch",  "%d",   o->overfit_single_batch) \
    X(master_dtype,         "use_master_weights",    "%s",   o->master_dtype == OPT_MASTER_FLOAT32 ? "enabled" : "disabled") \
    X(gelu_fusion,          "gelu_fusion",           "%d",   o->gelu_fusion) \
    X(recompute,            "recompute",             "%d",   o->recompute)

#include "llmc/options.h"

// Was the option given by llm.c's letter?
static inline bool option_given_by_letter(const Options* o, int index) { return o->given[index] && o->given[index][1] != '-'; }

// What one row cannot say. Ends the program (exit code 2) with a message, or settles it with a note. Called by options_parse.
// Letters mean what llm.c means by them, also where the long name is stricter.
static inline void options_check(Options* o) {
    for (int* count : {&o->val_every, &o->sample_every, &o->checkpoint_every, &o->checkpoint_keep, &o->checkpoint_major_every, &o->gelu_fusion}) {
        if (*count < 0) { *count = 0; }  // -1 is off, as in llm.c
    }
    if (o->sample_only) {  // one sequence, and no step
        o->batch_size = 1;
        o->total_batch_tokens = -1;
    }
    int64_t micro_step = (int64_t)o->batch_size * o->seq_len;
    if (o->total_batch_tokens != -1 && (o->total_batch_tokens == 0 || o->total_batch_tokens % o->seq_len != 0)) {
        fail_usage(("an optimizer step takes whole sequences: " + std::to_string((o->total_batch_tokens / o->seq_len + 1) * o->seq_len) + " would do").c_str(),
                   "--total-batch-tokens %lld is not a multiple of --seq-len %d", (long long)o->total_batch_tokens, o->seq_len);
    }
    if (o->total_batch_tokens > 0 && o->total_batch_tokens / micro_step > 1000000) {
        fail_usage("raise --batch-size or lower --total-batch-tokens", "--total-batch-tokens %lld is %lld micro-steps of %lld tokens; at most 1000000 are possible",
                   (long long)o->total_batch_tokens, (long long)(o->total_batch_tokens / micro_step), (long long)micro_step);
    }
    if (o->layers && o->heads && o->channels && options_is_set(o, "model") && !strstr(o->model, ".bin")) {
        fail_usage("give --model, or all three sizes", "--model %s says the sizes that --layers, --heads and --channels say as well", o->model);
    }
    if (!o->checkpoint_every && (o->checkpoint_keep || o->checkpoint_major_every)) { fprintf(stderr, "note: --checkpoint-keep and --checkpoint-major-every do nothing without --checkpoint-every\n"); }
    if (!o->checkpoint_keep && o->checkpoint_major_every) { fprintf(stderr, "note: --checkpoint-major-every does nothing without --checkpoint-keep: all checkpoints are kept\n"); }
    if (o->schedule == SCHEDULE_CONSTANT && o->warmup_steps && option_given_by_letter(o, OPTION_INDEX_warmup_steps)) {
        fprintf(stderr, "note: -u %d does nothing with the constant schedule, as in llm.c; --warmup-steps applies to every schedule\n", o->warmup_steps);
        o->warmup_steps = 0;
    }
    const float z_max = 11.269427f;  // sqrt(127): outlier_detector.h
    if (o->skip_loss_z > z_max || o->skip_grad_z > z_max) { fprintf(stderr, "note: no z-score exceeds %.3f: --skip-loss-z and --skip-grad-z above that never skip\n", z_max); }
    if (o->nccl_init == OPT_NCCL_MPI && (o->num_processes > 1 || o->process_rank > 0)) {
        fprintf(stderr, "note: --num-processes and --process-rank do nothing with --nccl-init mpi: the launcher says them\n");
        o->num_processes = 1;
        o->process_rank = 0;
    }
    if (o->process_rank >= o->num_processes) {
        fail_usage("ranks count from 0", "--process-rank %d is not below --num-processes %d", o->process_rank, o->num_processes);
    }
    if (o->sample_only && (o->checkpoint_every || o->hellaswag)) {
        fail_usage("leave out one or the other", "--sample-only does nothing but sample: --checkpoint-every and --hellaswag do not go with it");
    }
    if (o->calibrate && (o->dtype == OPT_DTYPE_FLOAT32 || o->sample_only || o->plan)) {
        fail_usage("leave out one or the other", "--calibrate measures the tensors of a BF16 run and ends: --dtype float32, --sample-only and --plan do not go with it");
    }
    if (o->calibrate && !o->calibration_file[0] && !o->output_dir[0]) { fail_usage("name a file with --calibration-file, or a folder with --output-dir", "--calibrate has nowhere to write to"); }
    if (o->calibration_file[0] && !o->calibrate) { fprintf(stderr, "note: --calibration-file does nothing without --calibrate; training reads --fp8-calibration\n"); }
    if (o->max_steps >= 0 && o->warmup_steps > o->max_steps) {
        fprintf(stderr, "note: --warmup-steps %d is longer than --max-steps %d: the learning rate never reaches its peak\n", o->warmup_steps, o->max_steps);
    }
    if (o->checkpoint_every > 0 && !o->output_dir[0]) {
        if (!option_given_by_letter(o, OPTION_INDEX_checkpoint_every)) { fail_usage("name a folder with --output-dir", "--checkpoint-every %d needs --output-dir", o->checkpoint_every); }
        fprintf(stderr, "WARNING: -n %d without -o writes no checkpoint, as in llm.c: the trained model will be lost\n", o->checkpoint_every);
        o->checkpoint_every = 0;
    }
    if (o->save_every_minutes > 0 && !o->output_dir[0]) { fail_usage("name a folder with --output-dir", "--save-every-minutes %g needs --output-dir", (double)o->save_every_minutes); }
    if (o->resume && !o->output_dir[0]) { fail_usage("name the folder of the run to continue with --output-dir", "--resume needs --output-dir"); }
    const bool fp8_options[2] = {o->fp8_activations, o->fp8_head};
    for (int i = 0; i < 2 && (o->dtype == OPT_DTYPE_BFLOAT16 || o->dtype == OPT_DTYPE_FLOAT32); i++) {
        if (!fp8_options[i]) { continue; }
        fail_usage("leave it out, or choose --dtype float8", "--fp8-%s needs --dtype float8; --dtype is %s", i ? "head" : "activations", o->dtype == OPT_DTYPE_BFLOAT16 ? "bfloat16" : "float32");
    }
    if (o->fp8_activations && o->recompute >= 3) {
        fprintf(stderr, "note: --fp8-activations does nothing with --recompute 3, which keeps none of what it would shrink\n");
        o->fp8_activations = 0;
    }
    if (o->channels && o->heads && o->channels % o->heads != 0) {
        fail_usage("choose --channels as a multiple of --heads", "--channels %d is not a multiple of --heads %d", o->channels, o->heads);
    }
}

#endif
