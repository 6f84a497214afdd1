/* Opens a model with settings in JSON: MODEL.gguf, names of settings. Ends with 0 if all do what they should. */

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

static const char *path;

/* What was told of the loading. */
typedef struct {
    int calls, calls_max;
    uint64_t done_bytes, total_bytes;
} Loading;

static bool told(uint64_t done_bytes, uint64_t total_bytes, void *user) {
    Loading *loading = user;
    loading->done_bytes = done_bytes;
    loading->total_bytes = total_bytes;
    return ++loading->calls < loading->calls_max;
}

static bool go_on(const char *text, size_t len, uint32_t token, void *user) {
    (void)text, (void)len, (void)token, (void)user;
    return true;
}

static void refused(const char *settings, const char *message) {
    BilayerModel *model = (BilayerModel *)&model;
    EXPECT(bilayer_open_json(path, settings, NULL, NULL, &model) == BILAYER_USAGE && !model);
    if (!strstr(bilayer_error_message(), message)) {
        fprintf(stderr, "%s: %s\n", settings, bilayer_error_message());
        exit(1);
    }
}

int main(int argc, char **argv) {
    path = argv[1];
    for (int i = 2; i < argc; ++i) {
        char settings[64], begin[64];
        snprintf(settings, sizeof settings, "{\"%s\": [[[]]]}", argv[i]);
        snprintf(begin, sizeof begin, "%s is [", argv[i]);
        refused(settings, begin);
    }
    refused("{", "settings are no JSON");
    refused("[]", "settings must be an object");
    refused("\xff", "settings is not UTF-8");
    refused("{\"thread\": 1}", "setting is thread; it must be one of gpu_layers, ");
    refused("{\"split_mode\": \"row\"}", "split_mode is row; it must be layer or none");
    refused("{\"thread\": null}", "setting is thread; it must be one of gpu_layers, ");
    refused("{\"thread\": 9223372036854775808}", "setting is thread; it must be one of gpu_layers, ");
    refused("{\"threads\": 9223372036854775808}", "threads has null or an integer above 9223372036854775807");
    refused("{\"context\": 4096.0}", "context is 4096.0; it must be a whole number");
    refused("{\"lora\": [null]}", "lora has null");
    refused("{\"ubatch_size\": 0}", "ubatch_size is 0");

    BilayerModel *model;
    EXPECT(bilayer_open_json(path, NULL, NULL, NULL, NULL) == BILAYER_USAGE);
    EXPECT(bilayer_open_json(NULL, NULL, NULL, NULL, &model) == BILAYER_USAGE && !model);
    const char *settings =
        "{\"gpu_layers\": 0, \"context\": 64, \"cache_type\": [\"q8_0\", \"f16\"], \"unfused\": true, \"no_mmap\": true,"
        " \"op_offload\": \"never\", \"overlap\": \"off\", \"split_mode\": \"none\", \"pooling\": null,"
        " \"override_tensor\": {\"attn\": 0}, \"metadata\": {\"{arch}.context_length\": 128}}";
    Loading loading = {0, 1 << 20, 0, 0};
    EXPECT(bilayer_open_json(path, settings, told, &loading, &model) == BILAYER_OK && model);
    EXPECT(bilayer_context(model) == 64);
    EXPECT(loading.calls > 1 && loading.done_bytes == loading.total_bytes && loading.total_bytes > 0);
    BilayerRequest request = bilayer_request_default();
    request.max_tokens = 2;
    EXPECT(bilayer_generate(model, "ROMEO:", &request, go_on, NULL) == BILAYER_OK);
    float strengths[] = {1};
    EXPECT(bilayer_lora(NULL, strengths, 1) == BILAYER_USAGE);
    EXPECT(bilayer_lora(model, NULL, 1) == BILAYER_USAGE);
    EXPECT(bilayer_lora(model, strengths, 1) == BILAYER_OK);
    /* The model has no adapters. */
    EXPECT(bilayer_generate(model, "ROMEO:", &request, go_on, NULL) == BILAYER_USAGE);
    EXPECT(bilayer_lora(model, NULL, 0) == BILAYER_OK);
    EXPECT(bilayer_generate(model, "ROMEO:", &request, go_on, NULL) == BILAYER_OK);
    bilayer_free(model);

    Loading ended = {0, 2, 0, 0};
    EXPECT(bilayer_open_json(path, "{\"gpu_layers\": 0}", told, &ended, &model) == BILAYER_INTERRUPTED && !model);
    EXPECT(ended.calls == 2 && ended.done_bytes < ended.total_bytes);
    puts("named");
    return 0;
}
