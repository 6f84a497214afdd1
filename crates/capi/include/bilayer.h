/* The C interface of Bilayer. docs/c.md is its guide; cbindgen makes this file: cargo xtask c-header.
 *
 * Every function may be called from any thread. Calls on one model wait for each other, except bilayer_cancel. Functions that can
 * fail return a code, and bilayer_error_message is the message of the thread's last failure. No pointer is kept after a call. */

#ifndef BILAYER_H
#define BILAYER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// The call succeeded.
#define BILAYER_OK 0

// An argument is out of range, or the call does not suit the model.
#define BILAYER_USAGE 2

// The model file cannot be used.
#define BILAYER_BAD_MODEL 65

// The file does not exist.
#define BILAYER_NO_FILE 66

// The device does not exist or does not work.
#define BILAYER_NO_DEVICE 69

// An internal error.
#define BILAYER_INTERNAL 70

// Reading or writing failed.
#define BILAYER_IO 74

// The model does not fit the memory, or a text does not fit the context.
#define BILAYER_DOES_NOT_FIT 75

// The callback or bilayer_cancel ended the call.
#define BILAYER_INTERRUPTED 130

// `gpu_layers`: as many layers on the GPU as are of use and fit.
#define BILAYER_LAYERS_AUTO -1

// `gpu_layers`: all layers on the GPU.
#define BILAYER_LAYERS_ALL -2

// A model on its devices.
typedef struct BilayerModel BilayerModel;

// How an answer is made. bilayer_request_default fills it in.
typedef struct {
  // Ends the answer after so many tokens; 0: the model or the context ends it.
  size_t max_tokens;
  // Divides the logits; 0 takes the most likely token.
  float temperature;
  // Keeps so many most likely tokens; 0: all.
  size_t top_k;
  // Keeps the most likely tokens with at least this mass; 1: all.
  float top_p;
  // Keeps tokens at least this share as likely as the most likely; 0: all.
  float min_p;
  // Keeps logits within so many standard deviations of the highest; 0 or less: all.
  float top_n_sigma;
  // Divides the logits of recent tokens; 1: off.
  float repeat_penalty;
  // Names of the samplers that run, in this order, separated by `;`, such as `top_k;temperature;min_p`; those left out are
  // off. NULL or empty: llama.cpp's default order.
  const char *samplers;
  // Key of the random stream: equal requests with equal seeds give equal texts.
  uint64_t seed;
  // A text that ends the answer and is no part of it; NULL: none.
  const char *stop;
  // A JSON schema that the answer must satisfy; NULL: none.
  const char *json_schema;
  // A grammar in GBNF that the answer must satisfy; NULL: none.
  const char *grammar;
  // Continues after the tokens with which a model ends its answer.
  bool ignore_eos;
  // Of a conversation whose last message is the assistant's: the answer continues that message.
  bool continue_final_message;
} BilayerRequest;

// Called with the text of each token, `len` bytes of UTF-8 without a NUL at its end, and with the pointer given along. The answer
// goes on while it returns true. It must not call functions on the same model other than `bilayer_cancel`, also not through a
// callback of another model; they refuse. Two threads whose callbacks call each other's models wait for each other forever.
// It returns: an exception of C++ that leaves it, or a longjmp out of it, is undefined.
typedef bool (*BilayerCallback)(const char *text, size_t len, uint32_t token, void *user);

// A message of a conversation.
typedef struct {
  // `system`, `user` or `assistant`.
  const char *role;
  // Its text.
  const char *content;
} BilayerMessage;

// How a model is opened. Zero everywhere is valid and runs all layers on the CPU.
typedef struct {
  // Layers on the GPU, the output head first; BILAYER_LAYERS_AUTO, BILAYER_LAYERS_ALL.
  int32_t gpu_layers;
  // Tokens of a prompt and its answer together; 0: the model's own, at most 8192.
  size_t context;
  // CPU threads; 0: one for each physical core.
  size_t threads;
  // Opens an encoder with a classification head for embeddings.
  bool embeddings;
  // Which GPU, as `bilayer devices` prints it; NULL: all discrete GPUs, else the best one.
  const char *device;
  // A chat template, or the name of one, in place of the model's own; NULL: the model's own.
  const char *chat_template;
  // How threads and a copy of the weights are divided among the CPU's NUMA nodes: `off` or `distribute`; NULL: off.
  const char *numa;
} BilayerOptions;

// Called while a model is loaded, with the bytes of weights that are loaded, those of all weights (0 while devices are
// measured), and the pointer given along. The loading goes on while it returns true.
typedef bool (*BilayerProgress)(uint64_t done_bytes, uint64_t total_bytes, void *user);

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Writes a vector for each of `count` texts to `vectors`, one after the other, which has room for `room` floats: `count` times
// bilayer_width. They have length 1 unless the checkpoint has no Normalize module. Texts longer than the context are cut if
// `truncate`, and refused otherwise.
//
// # Safety
// `model` is from bilayer_open and not freed; `texts` points to `count` texts that end with NUL; `vectors` has room for
// `room` floats.
int32_t bilayer_embed(const BilayerModel *model,
                      const char *const *texts,
                      size_t count,
                      bool truncate,
                      float *vectors,
                      size_t room);

// As bilayer_embed, with vectors scaled as `norm` says: any negative number not at all, 2 to length 1, 0 to a largest
// absolute value of 32760, any other P to a P-norm of 1.
//
// # Safety
// As of bilayer_embed.
int32_t bilayer_embed_scaled(const BilayerModel *model,
                             const char *const *texts,
                             size_t count,
                             bool truncate,
                             int32_t norm,
                             float *vectors,
                             size_t room);

// Writes the relevance of each of `count` documents to `query` to `scores`: the higher, the more relevant.
//
// # Safety
// As of bilayer_embed; `scores` has room for `count` floats.
int32_t bilayer_rerank(const BilayerModel *model,
                       const char *query,
                       const char *const *documents,
                       size_t count,
                       float *scores);

// The message of this thread's last failure; empty if none has failed. It is valid until the thread's next call.
const char *bilayer_error_message(void);

// The default request.
BilayerRequest bilayer_request_default(void);

// Continues `prompt` and calls `callback` for each token. `request` may be NULL for the default. BILAYER_INTERRUPTED if the
// callback or bilayer_cancel ended the answer.
//
// # Safety
// `model` is from bilayer_open and not freed; `prompt` and the texts of `request` end with NUL.
int32_t bilayer_generate(const BilayerModel *model,
                         const char *prompt,
                         const BilayerRequest *request,
                         BilayerCallback callback,
                         void *user);

// Answers a conversation of `count` messages, given whole, as bilayer_generate does. bilayer_chat_json also
// takes tool calls and results.
//
// # Safety
// As of bilayer_generate; `messages` points to `count` messages whose texts end with NUL.
int32_t bilayer_chat(const BilayerModel *model,
                     const BilayerMessage *messages,
                     size_t count,
                     const BilayerRequest *request,
                     BilayerCallback callback,
                     void *user);

// Answers a conversation in JSON, given whole, as bilayer_generate does: a list of messages as in the OpenAI API, with
// `tool_calls`, the role `tool`, lists of text parts and further fields for the chat template. `tools` is a JSON list of
// functions that the model may call; NULL: none. Tool calls appear in the text as the model writes them.
//
// # Safety
// As of bilayer_generate; `messages` ends with NUL; `tools` is NULL or ends with NUL.
int32_t bilayer_chat_json(const BilayerModel *model,
                          const char *messages,
                          const char *tools,
                          const BilayerRequest *request,
                          BilayerCallback callback,
                          void *user);

// Opens a GGUF file, of several shards the first, and writes the model to `model`. `options` may be NULL: the placement is
// then automatic. After a failure `model` is NULL.
//
// # Safety
// `path` and the texts of `options` end with NUL; `options` is NULL or valid; `model` may be written to.
int32_t bilayer_open(const char *path,
                     const BilayerOptions *options,
                     BilayerModel **model);

// Sets the strength of each of `count` adapters for the answers that begin from now on, of a model that was opened with
// `adapters_by_request`. NULL: those with which it was opened.
//
// # Safety
// `model` is from bilayer_open and not freed; `strengths` is NULL or points to `count` floats.
int32_t bilayer_lora(const BilayerModel *model,
                     const float *strengths,
                     size_t count);

// Frees a model; NULL is ignored. No other call on it may be running.
//
// # Safety
// `model` is NULL or from bilayer_open, and is not used again.
void bilayer_free(BilayerModel *model);

// Ends the call that runs: an answer before its next token, vectors and scores between steps. The call returns
// BILAYER_INTERRUPTED. Has no effect on a call that has not begun or that waits for another one. May be called while another
// thread works with the model, and in a signal handler.
//
// # Safety
// `model` is NULL or from bilayer_open and not freed.
void bilayer_cancel(const BilayerModel *model);

// Writes the tokens of a text, with those that the model wants around it, to `tokens`, and their number to `count`. With NULL
// and room 0 only the number. Control tokens that the text spells are parsed if `parse_special`.
//
// # Safety
// `text` ends with NUL; `tokens` is NULL or has room for `room` tokens; `count` is NULL or may be written to.
int32_t bilayer_tokenize(const BilayerModel *model,
                         const char *text,
                         bool parse_special,
                         uint32_t *tokens,
                         size_t room,
                         size_t *count);

// As bilayer_tokenize, but the tokens that the model wants around a text are left out unless `add_special`.
//
// # Safety
// As of bilayer_tokenize.
int32_t bilayer_tokenize_as(const BilayerModel *model,
                            const char *text,
                            bool add_special,
                            bool parse_special,
                            uint32_t *tokens,
                            size_t room,
                            size_t *count);

// Writes the text of tokens, without control tokens and without a NUL at its end, to `text`, and its bytes to `len`. With NULL
// and room 0 only their number.
//
// # Safety
// `tokens` points to `count` tokens; `text` is NULL or has room for `room` bytes; `len` is NULL or may be written to.
int32_t bilayer_detokenize(const BilayerModel *model,
                           const uint32_t *tokens,
                           size_t count,
                           char *text,
                           size_t room,
                           size_t *len);

// Elements of an embedding; 0 without a model.
//
// # Safety
// `model` is NULL or from bilayer_open and not freed.
size_t bilayer_width(const BilayerModel *model);

// Tokens that a prompt and its answer may have together; 0 without a model.
//
// # Safety
// `model` is NULL or from bilayer_open and not freed.
size_t bilayer_context(const BilayerModel *model);

// As bilayer_open, with settings in JSON: an object of the names that docs/c.md lists, such as
// `{"gpu_layers": "auto", "cache_type": "q8_0"}`; NULL: none. Those that are left out or null have their defaults.
// `progress` may be NULL; BILAYER_INTERRUPTED if it ended the loading.
//
// # Safety
// `path` and `settings` end with NUL; `settings` may be NULL; `model` may be written to.
int32_t bilayer_open_json(const char *path,
                          const char *settings,
                          BilayerProgress progress,
                          void *user,
                          BilayerModel **model);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* BILAYER_H */
