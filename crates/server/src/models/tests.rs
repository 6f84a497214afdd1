//! Models that are loaded, unloaded, replaced and ended.

use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use bilayer_engine::generate::Request;
use bilayer_engine::generate::speculate::{Drafter, DrafterSource};
use bilayer_engine::placement::Placing;
use bilayer_engine::requests::{Event, Submission};
use bilayer_engine::sampling::{Options, Sampler};
use bilayer_engine::session::{Session, Settings};
use bilayer_engine::{Error, Model, OpenOptions};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::*;
use crate::config::{AtEnd, Limits, Opened};
use crate::worker::{Ask, Update};

const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../cli/assets/demo.gguf");

/// A model, opened in some time, that counts how often it is opened.
fn offer(name: &str, opened: &Arc<AtomicUsize>) -> Offer {
    let opened = opened.clone();
    let open = move || {
        opened.fetch_add(1, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(50));
        let model = Model::open(DEMO.as_ref(), OpenOptions::default())?;
        let placing = Placing::cpu();
        let settings = Settings {
            threads: Some(1),
            ctx_size: Some(64),
            // For draft tokens.
            outputs: Some(8),
            placing,
            ..Settings::default()
        };
        let session = Session::new(&model, settings)?;
        Ok(Opened { session, drafters: None, at_end: None })
    };
    Offer {
        names: vec![name.to_owned()],
        tags: Vec::new(),
        path: DEMO.to_owned(),
        files: vec![DEMO.into()],
        bytes: 0,
        chat_template: None,
        is_pooled: false,
        is_of_folder: false,
        is_required: false,
        inspect: Arc::new(|| Model::open(DEMO.as_ref(), OpenOptions::default())),
        open: Arc::new(open),
    }
}

/// A server of models, of which one may be loaded.
fn serving(models: Vec<Offer>, request: Duration) -> Arc<Models> {
    serving_at_most(1, models, request)
}

/// A server of models, of which so many may be loaded.
fn serving_at_most(models_max: usize, models: Vec<Offer>, request: Duration) -> Arc<Models> {
    let limits = Limits { request, ..Limits::default() };
    let config = Config { models_max, limits, ..Config::of(models) };
    Arc::new(Models::new(Arc::new(config), Arc::new(Metrics::new())))
}

/// A client that asks for a model.
fn asking(models: &Arc<Models>, name: &'static str) -> JoinHandle<Result<(), ApiError>> {
    let models = models.clone();
    tokio::spawn(async move { models.get(Some(name)).await.map(drop) })
}

/// A client that asks for the second model, for which the first has been unloaded.
async fn replacing(models: &Arc<Models>) -> JoinHandle<Result<(), ApiError>> {
    let client = asking(models, "b");
    while models.list()[0].1 != Status::Unloaded {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    client
}

/// Unloading waits for no thread, neither one that the handlers of other requests need nor the lock of the models, and the
/// next model is loaded when the thread has ended, as the server ends then.
#[tokio::test]
async fn a_model_whose_thread_ends_late_is_unloaded_at_once() {
    let opened = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
    let (end, ends) = std::sync::mpsc::channel::<()>();
    let (inner, ends) = (offer("a", &opened[0]), Mutex::new(Some(ends)));
    let open = inner.open.clone();
    let late = move || {
        let ends = ends.lock().unwrap().take().unwrap();
        let at_end: AtEnd = Box::new(move |_| {
            // An error: the sender is dropped.
            let _ = ends.recv();
        });
        Ok(Opened { at_end: Some(at_end), ..open()? })
    };
    let late = Offer { open: Arc::new(late), ..inner };
    let offers = vec![late, offer("b", &opened[1])];
    let models = serving_at_most(2, offers, Duration::from_millis(20));
    models.get(Some("a")).await.map(drop).unwrap();
    let (unloading, (unloaded, is_unloaded)) = (models.clone(), std::sync::mpsc::channel());
    std::thread::spawn(move || unloaded.send(unloading.unload("a").map(drop).is_ok()));
    assert_eq!(is_unloaded.recv_timeout(Duration::from_secs(10)), Ok(true));
    assert_eq!(models.list()[0].1, Status::Unloaded);
    assert!(models.get(Some("b")).await.is_err(), "the memory of the first is not free");
    assert_eq!(opened[1].load(Ordering::SeqCst), 0);
    let soon = Instant::now() + Duration::from_millis(20);
    assert!(timeout_at(soon, models.end()).await.is_err(), "its thread has not ended");
    drop(end);
    models.end().await;
    assert!(models.get(Some("b")).await.is_err(), "the server has ended");
    assert_eq!(opened[1].load(Ordering::SeqCst), 0);
}

/// The end of a server waits for threads, which the handlers of clients that do not read do not keep.
#[tokio::test]
async fn the_end_of_a_server_does_not_wait_for_handlers() {
    let models = serving(vec![offer("a", &Arc::default())], Duration::MAX);
    let handler = models.get(None).await.ok().unwrap();
    let late = Instant::now() + Duration::from_secs(30);
    assert!(timeout_at(late, models.end()).await.is_ok());
    assert!(models.loaded().is_empty());
    drop(handler);
}

/// A load that waits for the memory of a model that answers does not begin once the server ends, and one that has begun
/// offers nothing.
#[tokio::test]
async fn the_end_of_a_server_ends_loads() {
    let opened = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
    let offers = vec![offer("a", &opened[0]), offer("b", &opened[1])];
    let models = serving(offers, Duration::MAX);
    let answer = models.get(Some("a")).await.ok().unwrap();
    let client = replacing(&models).await;
    models.end().await;
    drop(answer);
    assert_eq!(client.await.unwrap().unwrap_err().status, 503);
    assert_eq!(opened[1].load(Ordering::SeqCst), 0);

    let begun = Arc::new(AtomicUsize::new(0));
    let models = serving(vec![offer("a", &begun)], Duration::MAX);
    let client = models.clone();
    let client = tokio::spawn(async move { client.get(None).await.map(drop) });
    while begun.load(Ordering::SeqCst) == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    models.end().await;
    assert_eq!(client.await.unwrap().unwrap_err().status, 503);
    assert_eq!(models.list()[0].1, Status::Unloaded);
}

/// Makes the thread panic.
struct Panicking;

impl DrafterSource for Panicking {
    fn drafter(&mut self) -> Result<Option<Box<dyn Drafter>>, Error> {
        panic!("a test's panic")
    }
}

#[tokio::test]
async fn a_model_whose_thread_has_panicked_is_loaded_again() {
    let opened = Arc::new(AtomicUsize::new(0));
    let inner = offer("a", &opened);
    let open = inner.open.clone();
    let open = move || Ok(Opened { drafters: Some(Box::new(Panicking)), ..open()? });
    let models = serving(vec![Offer { open: Arc::new(open), ..inner }], Duration::MAX);
    let first = models.get(None).await.ok().unwrap();
    let sampler = Sampler::new(Options::default(), 256, 64).unwrap();
    let submission = Submission::new(Request::new(vec![1; 4]), sampler);
    let (updates, mut told) = tokio::sync::mpsc::unbounded_channel();
    let ask = Ask { ticket: 1, index: 0, submission, after: None, updates };
    first.decoder().unwrap().ask(0, 1, || Ok(vec![ask])).unwrap();
    let failed = loop {
        if let (_, Update::Failed(error)) = told.recv().await.unwrap() {
            break error;
        }
    };
    assert_eq!(failed.status, 500);
    assert!(models.loaded().is_empty());
    drop(first);
    models.get(None).await.map(drop).unwrap();
    assert_eq!(opened.load(Ordering::SeqCst), 2);
}

/// Its client leaves while a model is loaded; the next one gets the model without another load.
#[tokio::test]
async fn a_load_goes_on_when_its_client_leaves() {
    let begun = Arc::new(AtomicUsize::new(0));
    let models = serving(vec![offer("demo", &begun)], Duration::MAX);
    let client = models.clone();
    let client = tokio::spawn(async move { client.get(None).await.map(drop) });
    while begun.load(Ordering::SeqCst) == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    client.abort();
    assert!(client.await.unwrap_err().is_cancelled());
    models.get(None).await.map(drop).unwrap();
    assert_eq!(begun.load(Ordering::SeqCst), 1);
}

/// While a model answers, the one that needs its memory is not loaded, and later requests for it load no second copy.
#[tokio::test]
async fn a_model_is_loaded_when_the_answers_of_the_unloaded_one_have_ended() {
    let opened = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
    let count = || [0, 1].map(|at: usize| opened[at].load(Ordering::SeqCst));
    let offers = vec![offer("a", &opened[0]), offer("b", &opened[1])];
    let models = serving(offers, Duration::MAX);
    let answer = models.get(Some("a")).await.ok().unwrap();
    let other = replacing(&models).await;
    let again = asking(&models, "a");
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(count(), [1, 0], "both wait");
    drop(answer);
    other.await.unwrap().unwrap();
    again.await.unwrap().unwrap();
    assert_eq!(count(), [2, 1]);
}

#[tokio::test]
async fn a_model_that_nobody_waits_to_replace_answers_again() {
    let opened = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
    let offers = vec![offer("a", &opened[0]), offer("b", &opened[1])];
    let models = serving(offers, Duration::MAX);
    let answer = models.get(Some("a")).await.ok().unwrap();
    let client = replacing(&models).await;
    client.abort();
    assert!(Arc::ptr_eq(&answer, &models.get(Some("a")).await.ok().unwrap()));
    assert_eq!(opened[1].load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_model_whose_memory_was_wanted_in_vain_answers_again() {
    let opened = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
    let offers = vec![offer("a", &opened[0]), offer("b", &opened[1])];
    let models = serving(offers, Duration::from_millis(20));
    let answer = models.get(Some("a")).await.ok().unwrap();
    let error = models.get(Some("b")).await.err().unwrap();
    assert!(error.message.contains("--timeout"), "{error:?}");
    let again = models.get(Some("a")).await.ok().unwrap();
    assert!(Arc::ptr_eq(&answer, &again));
    assert_eq!(models.list()[1].1, Status::Unloaded);
    assert_eq!(opened[1].load(Ordering::SeqCst), 0);
}

/// Looking at models loads and unloads none; loading and unloading one takes its name.
#[tokio::test]
async fn only_what_is_loaded_is_shown() {
    let opened = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
    let offers = vec![offer("a", &opened[0]), offer("b", &opened[1])];
    let models = serving(offers, Duration::MAX);
    assert!(models.shown(None).await.is_err());
    models.load_named("b").await.map(drop).unwrap();
    assert_eq!(models.shown(None).await.ok().unwrap().id(), "b");
    assert_eq!(models.shown(Some("b")).await.ok().unwrap().id(), "b");
    assert_eq!(models.shown(Some("a")).await.err().unwrap().status, 409);
    assert_eq!(models.shown(Some("c")).await.err().unwrap().status, 404);
    assert_eq!([0, 1].map(|at: usize| opened[at].load(Ordering::SeqCst)), [0, 1]);

    let one = serving(vec![offer("a", &opened[0])], Duration::MAX);
    one.get(Some("any")).await.map(drop).unwrap();
    assert_eq!(one.load_named("any").await.err().unwrap().status, 404);
    assert_eq!(one.unload("any").err().unwrap().status, 404);
    assert_eq!(one.list()[0].1, Status::Loaded);
    one.unload("a").unwrap();
    assert_eq!(one.list()[0].1, Status::Unloaded);
}

/// A server starts without a model that it need not load; the model is tried again when it is asked for.
#[tokio::test]
async fn a_model_that_cannot_be_loaded_is_a_warning_unless_it_is_required() {
    let broken = |is_required| {
        let open = || Err(Error::setting("x", 1, 2.to_string()));
        let offer = offer("a", &Arc::default());
        serving(vec![Offer { open: Arc::new(open), is_required, ..offer }], Duration::MAX)
    };
    assert!(broken(true).load_first().await.is_err());
    let models = broken(false);
    assert!(models.load_first().await.ok().unwrap().is_none());
    assert!(matches!(models.list()[0].1, Status::Failed(_)));
    assert!(models.get(Some("a")).await.is_err());
    assert!(!models.are_unusable(), "its file is not at fault");
}

/// What was computed counts, also if nobody waits for the rest.
#[tokio::test]
async fn tokens_of_cancelled_answers_are_counted() {
    let models = serving(vec![offer("a", &Arc::default())], Duration::MAX);
    let loaded = models.get(None).await.ok().unwrap();
    let worker = loaded.decoder().unwrap();
    let sampler = Sampler::new(Options::default(), 256, 64).unwrap();
    let request = Request { ignore_eos: true, ..Request::new(vec![1; 4]) };
    let (updates, mut told) = tokio::sync::mpsc::unbounded_channel();
    let submission = Submission::new(request, sampler);
    let ask = Ask { ticket: 1, index: 0, submission, after: None, updates };
    worker.ask(0, 1, || Ok(vec![ask])).unwrap();
    while !matches!(told.recv().await.unwrap().1, Update::Event(Event::Token(_))) {}
    worker.cancel(1);
    // The channel is closed when it is cancelled.
    while told.recv().await.is_some() {}
    models.end().await;
    let text = models.metrics.render();
    let value = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{name}: {text}")).parse::<f64>().unwrap()
    };
    assert_eq!(value("llamacpp:prompt_tokens_total"), 4.0);
    let ended =
        value("bilayer:requests_finished_total") + value("bilayer:requests_cancelled_total");
    assert_eq!((value("bilayer:requests_finished_total"), ended), (0.0, 1.0));
    assert!(value("llamacpp:tokens_predicted_total") >= 1.0, "{text}");
}

/// A folder that cannot be read for a moment loses no model, and no name is that of another model.
#[tokio::test]
async fn a_folder_that_cannot_be_read_changes_nothing() {
    let of_folder = |name: &str| Offer {
        is_of_folder: true,
        path: name.into(),
        ..offer(name, &Arc::default())
    };
    let listed: Arc<Mutex<Option<Vec<&str>>>> = Arc::new(Mutex::new(Some(vec!["a", "b"])));
    let reads = Arc::new(AtomicUsize::new(0));
    let (seen, counted) = (listed.clone(), reads.clone());
    let rescan = move || {
        counted.fetch_add(1, Ordering::SeqCst);
        match &*seen.lock().unwrap() {
            Some(names) => Ok(names.iter().map(|name| of_folder(name)).collect()),
            None => Err(std::io::Error::from(std::io::ErrorKind::NotFound)),
        }
    };
    let config =
        Config { rescan: Some(Arc::new(rescan)), ..Config::of(["a", "b"].map(of_folder).to_vec()) };
    let models = Arc::new(Models::new(Arc::new(config), Arc::new(Metrics::new())));
    let names =
        || models.list().iter().map(|(offer, ..)| offer.names[0].clone()).collect::<Vec<_>>();
    models.get(Some("b")).await.map(drop).unwrap();
    *listed.lock().unwrap() = None;
    assert_eq!(models.rescan().await.unwrap_err().status, 503);
    assert_eq!(models.get(Some("z")).await.err().unwrap().status, 503);
    assert_eq!((names(), models.loaded().len()), (vec!["a".to_owned(), "b".to_owned()], 1));

    *listed.lock().unwrap() = Some(Vec::new());
    for name in [Some("z"), Some("a"), None] {
        models.rescan().await.unwrap();
        assert_eq!(models.get(name).await.err().unwrap().status, 404, "{name:?}");
        assert_eq!(models.shown(name).await.err().unwrap().status, 404, "{name:?}");
    }
    assert!(models.loaded().is_empty());
    *listed.lock().unwrap() = Some(vec!["b"]);
    assert_eq!(models.get(None).await.ok().unwrap().id(), "b");
    // Also where one model is left, which another name may have meant.
    let (begun, before) = (Instant::now(), reads.load(Ordering::SeqCst));
    for _ in 0..50 {
        assert_eq!(models.get(Some("a")).await.err().unwrap().status, 404);
        assert_eq!(models.shown(Some("any")).await.err().unwrap().status, 404);
    }
    let most = 1 + begun.elapsed().as_secs() as usize;
    assert!(reads.load(Ordering::SeqCst) - before <= most, "clients can ask for any name");
    assert_eq!(names(), ["b"]);
}
