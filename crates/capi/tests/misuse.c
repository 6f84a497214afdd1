/* Calls every function with what a careless program hands in: MODEL.gguf, many rounds. Ends with 0 if all are refused. */

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bilayer.h"

#define EXPECT(condition)                                                     \
    do {                                                                      \
        if (!(condition)) {                                                   \
            fprintf(stderr, "line %d: %s: %s\n", __LINE__, #condition,        \
                    bilayer_error_message());                                 \
            exit(1);                                                          \
        }                                                                     \
    } while (0)

static bool go_on(const char *text, size_t len, uint32_t token, void *user) {
    (void)text, (void)len, (void)token;
    if (user) ++*(int *)user;
    return true;
}

/* Calls the model that calls it. */
static bool again(const char *text, size_t len, uint32_t token, void *model) {
    (void)text, (void)len, (void)token;
    uint32_t room[8];
    EXPECT(bilayer_tokenize(model, "a", false, room, 8, NULL) == BILAYER_USAGE);
    return false;
}

/* Two models, the second of which calls the first in a callback of the first. */
static BilayerModel *both[2];

/* Calls a model that waits for the callback. */
static bool back(const char *text, size_t len, uint32_t token, void *user) {
    return again(text, len, token, user);
}

static bool through(const char *text, size_t len, uint32_t token, void *user) {
    (void)text, (void)len, (void)token, (void)user;
    EXPECT(bilayer_generate(both[1], "a", NULL, back, both[0]) == BILAYER_INTERRUPTED);
    return false;
}

static void *generate(void *model) {
    BilayerRequest request = bilayer_request_default();
    request.max_tokens = 4;
    request.ignore_eos = true;
    int count = 0;
    EXPECT(bilayer_generate(model, "ROMEO:", &request, go_on, &count) == BILAYER_OK);
    EXPECT(count == 4);
    /* The message belongs to the thread. */
    EXPECT(bilayer_error_message()[0] == '\0');
    return NULL;
}

/* An answer that its third token cancels. */
typedef struct {
    BilayerModel *model;
    int count;
} Cancelled;

static bool cancel(const char *text, size_t len, uint32_t token, void *user) {
    (void)text, (void)len, (void)token;
    Cancelled *answer = user;
    if (++answer->count == 3) bilayer_cancel(answer->model);
    return true;
}

static void *endless(void *model) {
    BilayerRequest request = bilayer_request_default();
    request.ignore_eos = true;
    Cancelled answer = {model, 0};
    EXPECT(bilayer_generate(model, "ROMEO:", &request, cancel, &answer) == BILAYER_INTERRUPTED);
    EXPECT(answer.count == 3);
    return NULL;
}

/* A model that is used after the end of the main thread, as destructors of static objects do. */
static BilayerModel *late;

static void at_exit(void) {
    if (bilayer_width(late) == 0 || bilayer_tokenize(late, NULL, false, NULL, 0, NULL) != BILAYER_USAGE) _Exit(3);
    if (bilayer_error_message() == NULL) _Exit(4);
    bilayer_free(late);
}

/* Ends a loading, during which the variable of the model is NULL. */
static bool end(uint64_t done_bytes, uint64_t total_bytes, void *user) {
    EXPECT(done_bytes < total_bytes && !*(BilayerModel **)user);
    return false;
}

static bool load(uint64_t done_bytes, uint64_t total_bytes, void *user) {
    EXPECT(done_bytes <= total_bytes && !*(BilayerModel **)user);
    return true;
}

/* The settings in JSON. */
static void misuse_json(const char *path) {
    BilayerModel *model = (BilayerModel *)&model;
    EXPECT(bilayer_open_json(NULL, "{}", NULL, NULL, &model) == BILAYER_USAGE && !model);
    EXPECT(bilayer_open_json(path, "{}", NULL, NULL, NULL) == BILAYER_USAGE);
    EXPECT(bilayer_open_json("missing.gguf", NULL, NULL, NULL, &model) == BILAYER_NO_FILE && !model);
    EXPECT(bilayer_open_json(path, "{\"lora\": [[[1]]]}", NULL, NULL, &model) == BILAYER_USAGE && !model);
    const char *settings = "{\"gpu_layers\": 0, \"context\": 64}";
    model = (BilayerModel *)&model;
    EXPECT(bilayer_open_json(path, settings, end, &model, &model) == BILAYER_INTERRUPTED && !model);
    EXPECT(bilayer_open_json(path, settings, load, &model, &model) == BILAYER_OK && model);
    EXPECT(bilayer_context(model) == 64);
    float strengths[] = {1, -1};
    EXPECT(bilayer_lora(NULL, strengths, 2) == BILAYER_USAGE);
    EXPECT(bilayer_lora(model, NULL, 2) == BILAYER_USAGE);
    EXPECT(bilayer_lora(model, strengths, 2) == BILAYER_OK);
    EXPECT(bilayer_generate(model, "a", NULL, go_on, NULL) == BILAYER_USAGE);
    EXPECT(bilayer_lora(model, NULL, 0) == BILAYER_OK);
    bilayer_free(model);
}

static void misuse(const char *path) {
    BilayerModel *model = (BilayerModel *)&model;
    EXPECT(bilayer_open(NULL, NULL, &model) == BILAYER_USAGE && !model);
    EXPECT(bilayer_open(path, NULL, NULL) == BILAYER_USAGE);
    EXPECT(bilayer_open("missing.gguf", NULL, &model) == BILAYER_NO_FILE && !model);
    EXPECT(strstr(bilayer_error_message(), "missing.gguf"));
    EXPECT(bilayer_open("\xff", NULL, &model) == BILAYER_USAGE);
    EXPECT(bilayer_open(__FILE__, NULL, &model) == BILAYER_BAD_MODEL);
    BilayerOptions options = {0};
    options.gpu_layers = -7;
    EXPECT(bilayer_open(path, &options, &model) == BILAYER_USAGE);
    options.gpu_layers = 0;
    options.numa = "isolate";
    EXPECT(bilayer_open(path, &options, &model) == BILAYER_USAGE);
    EXPECT(strstr(bilayer_error_message(), "numa is `isolate`"));
    options.numa = "2";
    options.context = 512;
    EXPECT(bilayer_open(path, &options, &model) == BILAYER_OK && model);
    EXPECT(bilayer_context(model) == 512 && bilayer_width(model) > 0);

    BilayerRequest request = bilayer_request_default();
    EXPECT(bilayer_generate(NULL, "a", NULL, go_on, NULL) == BILAYER_USAGE);
    EXPECT(bilayer_generate(model, NULL, NULL, go_on, NULL) == BILAYER_USAGE);
    EXPECT(bilayer_generate(model, "a", NULL, NULL, NULL) == BILAYER_USAGE);
    request.top_p = 3;
    EXPECT(bilayer_generate(model, "a", &request, go_on, NULL) == BILAYER_USAGE);
    EXPECT(strstr(bilayer_error_message(), "top_p is 3"));
    request = bilayer_request_default();
    request.samplers = "top_k;hot";
    EXPECT(bilayer_generate(model, "a", &request, go_on, NULL) == BILAYER_USAGE);
    request.samplers = "top_k;temperature;infill";
    request.max_tokens = 1;
    EXPECT(bilayer_generate(model, "a", &request, go_on, NULL) == BILAYER_OK);
    request = bilayer_request_default();
    request.json_schema = "{";
    EXPECT(bilayer_generate(model, "a", &request, go_on, NULL) == BILAYER_USAGE);
    BilayerMessage wizard = {"wizard", "a"};
    EXPECT(bilayer_chat(model, &wizard, 1, NULL, go_on, NULL) == BILAYER_USAGE);
    EXPECT(bilayer_chat(model, NULL, 1, NULL, go_on, NULL) == BILAYER_USAGE);

    EXPECT(bilayer_chat_json(model, "[{", NULL, NULL, go_on, NULL) == BILAYER_USAGE);
    EXPECT(bilayer_chat_json(model, "[{\"role\": \"user\"}]", NULL, NULL, go_on, NULL) == BILAYER_USAGE);
    EXPECT(strstr(bilayer_error_message(), "messages[0] must have role and content"));
    EXPECT(bilayer_chat_json(model, "[]", NULL, NULL, go_on, NULL) == BILAYER_USAGE);
    EXPECT(strstr(bilayer_error_message(), "messages must not be empty"));
    EXPECT(bilayer_chat(model, NULL, 0, NULL, go_on, NULL) == BILAYER_USAGE);
    EXPECT(strstr(bilayer_error_message(), "messages must not be empty"));
    const char *asked = "[{\"role\": \"user\", \"content\": \"a\"}]";
    request = bilayer_request_default();
    EXPECT(!request.continue_final_message);
    request.continue_final_message = true;
    EXPECT(bilayer_generate(model, "a", &request, go_on, NULL) == BILAYER_USAGE);
    EXPECT(strstr(bilayer_error_message(), "continue_final_message is for conversations"));
    EXPECT(bilayer_chat_json(model, asked, "{}", NULL, go_on, NULL) == BILAYER_USAGE);
    EXPECT(strstr(bilayer_error_message(), "tools: "));
    EXPECT(bilayer_chat_json(model, NULL, NULL, NULL, go_on, NULL) == BILAYER_USAGE);

    uint32_t tokens[1];
    size_t count = 0, plain = 0;
    EXPECT(bilayer_tokenize_as(model, "ROMEO: O me!", false, false, NULL, 0, &plain) == BILAYER_OK);
    EXPECT(bilayer_tokenize(model, "ROMEO: O me!", false, tokens, 1, &count) == BILAYER_USAGE);
    EXPECT(count > 1);
    EXPECT(bilayer_tokenize(model, "ROMEO: O me!", false, NULL, 0, &count) == BILAYER_OK);
    EXPECT(count == plain + 1);
    EXPECT(bilayer_detokenize(model, NULL, 3, NULL, 0, &count) == BILAYER_USAGE);
    const char *texts[] = {"a", NULL};
    float vector[1];
    EXPECT(bilayer_embed(model, texts, 2, false, vector, 1) == BILAYER_USAGE);
    EXPECT(bilayer_embed(model, texts, 1, false, vector, 1) == BILAYER_USAGE);
    EXPECT(bilayer_embed_scaled(model, texts, 1, false, -1, vector, 1) == BILAYER_USAGE);
    EXPECT(bilayer_rerank(model, "a", texts, 1, vector) == BILAYER_USAGE);

    EXPECT(bilayer_generate(model, "a", NULL, again, model) == BILAYER_INTERRUPTED);
    both[0] = model;
    options.numa = NULL;
    EXPECT(bilayer_open(path, &options, &both[1]) == BILAYER_OK);
    EXPECT(bilayer_generate(both[0], "a", NULL, through, NULL) == BILAYER_INTERRUPTED);
    bilayer_free(both[1]);

    pthread_t threads[4];
    for (int i = 0; i < 4; ++i) pthread_create(&threads[i], NULL, generate, model);
    for (int i = 0; i < 4; ++i) pthread_join(threads[i], NULL);
    pthread_create(&threads[0], NULL, endless, model);
    pthread_join(threads[0], NULL);
    /* A cancel before the call has no effect. */
    bilayer_cancel(model);
    pthread_create(&threads[0], NULL, generate, model);
    pthread_join(threads[0], NULL);
    bilayer_cancel(NULL);
    bilayer_free(NULL);
    bilayer_free(model);
}

int main(int argc, char **argv) {
    int rounds = argc > 2 ? atoi(argv[2]) : 1;
    for (int round = 0; round < rounds; ++round) {
        misuse(argv[1]);
        misuse_json(argv[1]);
    }
    /* Rust's thread-locals of this thread are dropped before the handlers of atexit run. */
    BilayerOptions options = {0};
    EXPECT(bilayer_open(argv[1], &options, &late) == BILAYER_OK && bilayer_width(late) > 0);
    EXPECT(atexit(at_exit) == 0);
    puts("refused");
    return 0;
}
