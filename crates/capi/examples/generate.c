/* Generates text, chats, tokenizes, and shows how failures look: generate MODEL.gguf */

#include <stdio.h>
#include <string.h>

#include "bilayer.h"

/* Prints a token, and stops the answer after so many as `user` points to. */
static bool print_token(const char *text, size_t len, uint32_t token, void *user) {
    (void)token;
    fwrite(text, 1, len, stdout);
    fflush(stdout);
    int *left = user;
    return --*left > 0;
}

static int failed(const char *what) {
    fprintf(stderr, "%s: %s\n", what, bilayer_error_message());
    return 1;
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: generate MODEL.gguf\n");
        return 2;
    }
    BilayerOptions options = {0};
    options.context = 256;
    BilayerModel *model;
    int32_t code = bilayer_open(argv[1], &options, &model);
    if (code != BILAYER_OK) {
        failed("open");
        return code;
    }

    BilayerRequest request = bilayer_request_default();
    request.temperature = 0;
    request.max_tokens = 16;
    int left = 1000;
    if (bilayer_generate(model, "ROMEO:\n", &request, print_token, &left) != BILAYER_OK) {
        return failed("generate");
    }
    printf("\n[%d tokens]\n", 1000 - left);

    /* A callback that returns false ends the answer. */
    left = 3;
    code = bilayer_generate(model, "ROMEO:\n", &request, print_token, &left);
    printf("\n[code %d: %s]\n", code, bilayer_error_message());

    uint32_t tokens[32];
    size_t count;
    if (bilayer_tokenize(model, "O me!", false, tokens, 32, &count) != BILAYER_OK) {
        return failed("tokenize");
    }
    char text[64];
    size_t len;
    if (bilayer_detokenize(model, tokens, count, text, sizeof text, &len) != BILAYER_OK) {
        return failed("detokenize");
    }
    printf("%zu tokens: %.*s\n", count, (int)len, text);

    /* This model generates text, so that it has no embeddings to give. */
    const char *texts[] = {"a cat", "a kitten"};
    float vectors[2];
    code = bilayer_embed(model, texts, 2, false, vectors, 2);
    printf("[code %d: %s]\n", code, bilayer_error_message());

    bilayer_free(model);
    return 0;
}
