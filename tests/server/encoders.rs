//! Encoders over HTTP: the scores, labels and vectors of the library.

use bilayer::{Model, Pooling};
use serde_json::{Value, json};

use super::DEMO;
use super::support::http::Server;
use super::support::program::Place;
use super::support::words;

/// A server of the model that `words::scorer` makes, and the same model in the library.
fn served(architecture: &str, labels: &[&str]) -> (Server, Model) {
    let place = Place::new();
    place.file("scorer.gguf", words::scorer(architecture, labels));
    let model = Model::builder(place.path().join("scorer.gguf")).gpu_layers(0).open().unwrap();
    // llama.cpp's name for scores, which an encoder that has some gives in any case.
    (Server::start_in(place, "-m scorer.gguf --embedding --pooling rank"), model)
}

fn numbers(list: &Value, key: &str) -> Vec<f32> {
    let one = |entry: &Value| entry[key].as_f64().unwrap() as f32;
    list.as_array().unwrap().iter().map(one).collect()
}

fn assert_close(found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len());
    let is_close = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-5 * b.abs().max(1.0);
    assert!(found.iter().zip(expected).all(is_close), "{found:?}, not {expected:?}");
}

/// Windows refuses to write a file that is mapped.
#[cfg(unix)]
#[test]
fn an_encoder_whose_file_changes_is_loaded_again() {
    let place = Place::new();
    let bytes = words::scorer("modern-bert", &["relevant"]);
    let file = place.file("scorer.gguf", &bytes);
    let server = Server::start_in(place, "-m scorer.gguf --pooling rank");
    let body = json!({ "query": "a b", "documents": ["b c", "d"] });
    let ask = || server.post("/rerank", &body).status;
    assert_eq!(ask(), 200);
    std::fs::write(&file, &bytes).unwrap();
    assert_eq!((ask(), ask()), (500, 200));
}

#[test]
fn rerank_scores_documents_as_the_library_does() {
    let (server, mut model) = served("modern-bert", &["relevant"]);
    let documents = ["b c", "d", "e f g h", "a b c"];
    let expected = model.rerank("a b", &documents).unwrap();
    for path in ["/v1/rerank", "/rerank", "/v1/reranking"] {
        let body = json!({ "query": "a b", "documents": documents });
        let found = server.post(path, &body).good();
        let results = found["results"].as_array().unwrap();
        let mut scores = [0.0; 4];
        for result in results {
            let at = result["index"].as_u64().unwrap() as usize;
            scores[at] = result["relevance_score"].as_f64().unwrap() as f32;
        }
        assert_close(&scores, &expected);
        assert!(found["usage"]["total_tokens"].as_u64() > Some(0), "{found}");
    }
    let body = json!({ "query": "a b", "documents": documents, "top_n": 2 });
    let found = server.post("/v1/rerank", &body).good();
    let mut best = expected.clone();
    best.sort_by(|a, b| b.total_cmp(a));
    assert_close(&numbers(&found["results"], "relevance_score"), &best[..2]);
    // In TEI's form texts come back by another name.
    for (field, shown) in [("return_text", json!("d")), ("return_nothing", Value::Null)] {
        let body = json!({ "query": "a b", "texts": ["d"], field: true });
        assert_eq!(server.post("/rerank", &body).good()[0]["text"], shown, "{field}");
    }
    // A reranker made of a decoder gives probabilities.
    let place = Place::new();
    place.file("scorer.gguf", words::reranker("a {query}: {document}!</s>"));
    let path = place.path().join("scorer.gguf");
    let mut decoder = Model::builder(path).gpu_layers(0).open().unwrap();
    let expected = decoder.rerank("a b", &documents).unwrap();
    assert!(expected.iter().all(|score| (0.0..1.0).contains(score)), "{expected:?}");
    assert_ne!(expected[0], expected[1]);
    let shown = place.run("rerank -m scorer.gguf -ngl 0 --query a b").json();
    let alone = decoder.rerank("a", &["b"]).unwrap();
    assert_close(&[shown["score"].as_f64().unwrap() as f32], &alone);
    // The key for pooling is in the file.
    let pooled = place.run("embed -m scorer.gguf -ngl 0 --pooling mean a").json();
    assert_eq!(pooled["embedding"].as_array().unwrap().len(), 64);
    let bare = "--override-kv tokenizer.ggml.add_bos_token=bool:false";
    let decoder = Server::start_in(place, &format!("-m scorer.gguf -ngl 0 {bare}"));
    let empty = decoder.post("/v1/classify", &json!({ "input": ["b", ""] }));
    assert_eq!(empty.status, 400, "{empty:?}");
    for raw in [false, true] {
        let body = json!({ "query": "a b", "texts": documents, "raw_scores": raw });
        let found = decoder.post("/rerank", &body).good();
        for result in found.as_array().unwrap() {
            let score = result["score"].as_f64().unwrap() as f32;
            assert_close(&[score], &[expected[result["index"].as_u64().unwrap() as usize]]);
        }
    }
    for (body, field) in [
        (json!({ "query": "a" }), "documents"),
        (json!({ "documents": ["a"] }), "query"),
        (json!({ "query": "a", "documents": "b" }), "documents"),
        (json!({ "query": "a", "documents": ["b", 3] }), "documents"),
    ] {
        let refused = server.post("/v1/rerank", &body);
        assert_eq!(refused.status, 400, "{body}");
        assert!(refused.body.contains(field), "{body}: {}", refused.body);
    }
}

#[test]
fn classify_gives_every_label_as_the_library_does() {
    let labels = ["good", "bad", "neither"];
    let (server, mut model) = served("bert", &labels);
    let texts = ["a b c", "z y x", "a"];
    let expected = model.classify(&texts).unwrap();
    let found = server.post("/v1/classify", &json!({ "input": texts })).good();
    let data = found["data"].as_array().unwrap();
    assert_eq!(data.len(), texts.len());
    for (entry, expected) in data.iter().zip(&expected) {
        let mut expected = expected.clone();
        expected.sort_by(|a, b| b.probability.total_cmp(&a.probability));
        let chances: Vec<f32> = expected.iter().map(|label| label.probability).collect();
        assert_close(&numbers(&entry["scores"], "score"), &chances);
        for (found, expected) in entry["scores"].as_array().unwrap().iter().zip(&expected) {
            assert_eq!(found["label"], expected.name);
        }
        assert_eq!(entry["label"], expected[0].name);
    }
    // What an encoder cannot do is refused.
    let refused = server.post("/v1/completions", &json!({ "prompt": "a" }));
    assert_eq!(refused.status, 501, "{}", refused.body);
    let refused = server.post("/v1/rerank", &json!({ "query": "a", "documents": ["b"] }));
    assert_eq!(refused.status, 501, "{}", refused.body);
    assert!(refused.body.contains("3 scores"), "{}", refused.body);
}

#[test]
fn extract_gives_the_entities_of_the_library() {
    let place = Place::new();
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/checkpoints/roberta-tokens");
    place.run(&format!("convert {folder} --outfile tagger.gguf --outtype f32")).good();
    let model = place.path().join("tagger.gguf");
    let mut model = Model::builder(model).gpu_layers(0).open().unwrap();
    let server = Server::start_in(place, "-m tagger.gguf -ngl 0");
    let long = "Müller lives in New York. ".repeat(20);
    let texts = ["John Smith", &long, ""];
    let options = bilayer::extract::Options { stride: Some(5), ..Default::default() };
    let expected = model.extract(&texts, &options).unwrap();
    assert!(expected[1].len() > 20);
    let body = json!({ "input": texts, "stride": 5 });
    let found = server.post("/v1/extract", &body).good();
    for (number, (entry, expected)) in
        found["data"].as_array().unwrap().iter().zip(&expected).enumerate()
    {
        assert_eq!(entry["index"], number);
        let entities = entry["entities"].as_array().unwrap();
        assert_eq!(entities.len(), expected.len());
        let scores: Vec<f32> = expected.iter().map(|entity| entity.score).collect();
        assert_close(&numbers(&entry["entities"], "score"), &scores);
        for (found, expected) in entities.iter().zip(expected) {
            assert_eq!(
                (&found["label"], &found["text"]),
                (&json!(expected.label), &json!(expected.text))
            );
            assert_eq!(found["start"], expected.chars.start);
            assert_eq!(found["end_byte"], expected.bytes.end);
        }
    }
    for (body, field) in [
        (json!({ "input": "a", "aggregation": "most" }), "aggregation"),
        (json!({ "input": "a", "stride": 38 }), "stride"),
        (json!({ "input": "a", "ignore_labels": "O" }), "ignore_labels"),
    ] {
        let refused = server.post("/v1/extract", &body);
        assert_eq!(refused.status, 400, "{body}: {}", refused.body);
        assert!(refused.body.contains(field), "{body}: {}", refused.body);
    }
    // A window for each token but those of the first window.
    let many = json!({ "input": "New York ".repeat(9000), "stride": 37 });
    let refused = server.post("/v1/extract", &many);
    assert_eq!(refused.status, 400, "{}", refused.body);
    assert!(refused.body.contains("16384 windows"), "{}", refused.body);
    let refused = server.post("/v1/classify", &json!({ "input": "a" }));
    assert_eq!(refused.status, 501, "{}", refused.body);
    let (server, _) = served("bert", &["good", "bad"]);
    let refused = server.post("/v1/extract", &json!({ "input": "a" }));
    assert_eq!(refused.status, 501, "{}", refused.body);
}

/// XLM-RoBERTa by text, from the checkpoint to the server: a vector is that of the makers' token ids.
#[test]
fn a_unigram_model_takes_texts_and_pairs() {
    let place = Place::new();
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/checkpoints/xlm-roberta-pieces");
    let record = std::fs::read(format!("{folder}/reference.json")).unwrap();
    let record: Value = serde_json::from_slice(&record).unwrap();
    place.run(&format!("convert {folder} --outfile xlm.gguf --outtype f32")).good();
    place.file("text.txt", "The king is here.");
    let ids = place.run("tokenize -m xlm.gguf --ids -f text.txt").good().out;
    let shown =
        place.run(&format!("detokenize -m xlm.gguf {}", ids.trim_matches(['[', ']', '\n'])));
    assert_eq!(shown.good().out.trim(), "The king is here.");
    let model = place.path().join("xlm.gguf");
    let mut scorer = Model::builder(&model).gpu_layers(0).open().unwrap();
    let mut embedder = Model::builder(&model).gpu_layers(0).embeddings().open().unwrap();
    let pair = &record["pairs"][0];
    let [query, document] = ["text", "pair"].map(|key| pair[key].as_str().unwrap());
    let expected = scorer.rerank(query, &[document, "a", "He sat there."]).unwrap();
    assert!(expected[0] != expected[1] && expected[1] != expected[2], "{expected:?}");
    let text = record["cases"][13]["text"].as_str().unwrap();
    let vector = embedder.embed(&[text]).unwrap().remove(0);
    place.file("query.txt", text);
    let shown = place.run("embed -m xlm.gguf -f query.txt -ngl 0").json();
    assert_close(&serde_json::from_value::<Vec<f32>>(shown["embedding"].clone()).unwrap(), &vector);
    let server = Server::start_in(place, "-m xlm.gguf -ngl 0 --embeddings");
    for input in [json!(text), record["cases"][13]["ids"].clone()] {
        let found = server.post("/v1/embeddings", &json!({ "input": input })).good();
        let found = found["data"][0]["embedding"].clone();
        assert_close(&serde_json::from_value::<Vec<f32>>(found).unwrap(), &vector);
    }
    // A decoder embeds if it is told how.
    let decoder = Server::start("-ngl 0 --embeddings --pooling last");
    let found = decoder.post("/v1/embeddings", &json!({ "input": text })).good();
    let found: Vec<f32> = serde_json::from_value(found["data"][0]["embedding"].clone()).unwrap();
    let mut model = Model::builder(DEMO).gpu_layers(0).pooling(Pooling::Last).open().unwrap();
    assert_close(&found, &model.embed(&[text]).unwrap()[0]);
    for (dimensions, status) in [(vector.len(), 200), (vector.len() + 1, 400)] {
        let body = json!({ "input": text, "dimensions": dimensions });
        let reply = server.post("/v1/embeddings", &body);
        assert_eq!(reply.status, status, "{dimensions}: {reply:?}");
    }
}

/// Texts behind a prompt of the model are the texts with it, however an input gives them.
#[test]
fn texts_come_behind_a_prompt_of_the_model() {
    let place = Place::new();
    place.file("scorer.gguf", words::scorer("bert", &["a"]));
    let shown = place.run("embed -m scorer.gguf -ngl 0 --prompt-name query a").json();
    assert_eq!(
        shown["embedding"],
        place.run("embed -m scorer.gguf -ngl 0 -p d\\x20e\\x20a").json()["embedding"]
    );
    let refused = place.run("embed -m scorer.gguf -ngl 0 --prompt-name other a");
    assert_eq!(refused.code, Some(2), "{}", refused.err);
    assert!(refused.err.contains("prompt-name is other; it must be query"), "{}", refused.err);
    let server = Server::start_in(place, "-m scorer.gguf -ngl 0 --embedding");
    let vectors = |body: Value| {
        let found = server.post("/v1/embeddings", &body).good();
        let each = found["data"].as_array().unwrap().iter();
        let vector = |one: &Value| serde_json::from_value::<Vec<f32>>(one["embedding"].clone());
        each.flat_map(|one| vector(one).unwrap()).collect::<Vec<f32>>()
    };
    let expected = vectors(json!({ "input": ["d e a b", "d e c"] }));
    let parts = json!([{ "type": "text", "text": "c" }]);
    for input in [
        json!(["a b", "c"]),
        json!([{ "prompt_string": "a b" }, "c"]),
        json!([{ "prompt_string": "a b" }, { "content": parts }]),
    ] {
        assert_close(&vectors(json!({ "input": input, "prompt_name": "query" })), &expected);
    }
    let alone = vectors(json!({ "input": "a b", "prompt_name": "query" }));
    assert_close(&alone, &expected[..alone.len()]);
    let error = server.post("/v1/embeddings", &json!({ "input": "a", "prompt_name": "other" }));
    assert_eq!(
        (error.status, &error.json()["error"]["param"]),
        (400, &json!("prompt_name")),
        "{error:?}"
    );
}

/// Tokens that are cut keep the one that ends a text only if it was given; adapters have the strength of the flags.
#[test]
fn tokens_are_cut_as_given_and_adapters_are_fixed() {
    let place = Place::new();
    place.file("scorer.gguf", words::scorer("bert", &["a"]));
    let server = Server::start_in(place, "-m scorer.gguf -ngl 0 -c 8 --embedding");
    let vector = |tokens: &[u32]| -> Vec<f32> {
        let body = json!({ "input": [tokens], "truncate": true });
        let found = server.post("/v1/embeddings", &body).good();
        serde_json::from_value(found["data"][0]["embedding"].clone()).unwrap()
    };
    let bare: Vec<u32> = (4..16).collect();
    assert_close(&vector(&bare), &vector(&bare[..8]));
    let ended = [&bare[..], &[2]].concat();
    assert_close(&vector(&ended), &vector(&[&bare[..7], &[2]].concat()));
    let refused = server.post("/lora-adapters", &json!([{ "id": 0, "scale": 0 }]));
    assert!(refused.status >= 400 && refused.body.contains("--lora-scaled"), "{refused:?}");
}
