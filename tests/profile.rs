//! The promise of a profile's charts and page: they are well-formed, complete and self-contained for any measurements and
//! names, and a browser shows every number of the document in both themes.

#![allow(clippy::unwrap_used, reason = "a test that cannot set up its files shall stop")]

use std::collections::BTreeSet;
use std::path::Path;

use bilayer_cli::profile::{text, write};
use bilayer_measure::profile::{AtSequences, AtThreads, Curves, Profile, Step};
use roxmltree::{Document, Node};
use serde_json::Value;

mod support {
    pub mod browser;
    pub mod model;
    pub mod profiles;
    pub mod program;
    pub mod words;
}

use support::browser::{self, Theme};
use support::profiles::{SHAPES, profile};
use support::program::Place;
use support::words;

const CHARTS: [&str; 6] = ["speedup", "layers", "time", "prefill", "memory", "timeline"];

/// Those of a profile without a GPU.
const CHARTS_OF_CPU: [&str; 5] = ["threads", "prompts", "bandwidth", "sequences", "timeline"];

/// A script that queries the page after hovering over the second number of layers.
const QUESTIONS: &str = r#"
<script>
{
  const all = (selector, of) => [...document.querySelectorAll(selector)].map(of);
  const colour = (selector, property) => getComputedStyle(document.querySelector(selector))[property];
  document.querySelector('.f-hidden[data-n="1"]').dispatchEvent(new PointerEvent('pointerover', {bubbles: true}));
  const found = {
    charts: all('.chart svg', e => [e.getBoundingClientRect().width, e.getBoundingClientRect().height])
      .filter(([width]) => width > 0),
    sideways: all('.chart, .chart *', e => e.scrollWidth - e.clientWidth).filter(beyond => beyond > 1),
    small: Math.min(...all('.chart svg text', e => e.getBoundingClientRect().height).filter(height => height > 0)),
    window: innerWidth,
    cells: all('tbody data[data-key]', e => [
      +e.closest('tr').dataset.n, e.dataset.key, +e.value, e.textContent, e.getBoundingClientRect().height]),
    document: JSON.parse(document.getElementById('data').textContent),
    heading: document.querySelector('h1').textContent,
    model: document.querySelector('.facts dd').textContent,
    pointed: all('.on', e => e).filter(e => e.getBoundingClientRect().width > 0).map(e => e.dataset.n),
    wide: document.documentElement.scrollWidth - innerWidth,
    loaded: performance.getEntriesByType('resource').map(e => e.name),
    colours: {
      page: colour('body', 'backgroundColor'), words: colour('body', 'color'),
      chart: colour('.chart .f-surface', 'fill'), curve: colour('.chart .s-gpu', 'stroke'),
    },
  };
  const answer = document.createElement('pre');
  answer.id = 'answer';
  answer.textContent = encodeURIComponent(JSON.stringify(found));
  document.body.append(answer);
}
</script>
</body>"#;

fn read(folder: &Path, name: &str) -> String {
    std::fs::read_to_string(folder.join(name)).unwrap()
}

/// Equal up to the last digit, which serde_json does not guarantee to read back.
fn is_same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => {
            let (a, b) = (a.as_f64().unwrap(), b.as_f64().unwrap());
            (a - b).abs() <= 1e-12 * a.abs().max(b.abs())
        }
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| is_same(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(key, a)| b.get(key).is_some_and(|b| is_same(a, b)))
        }
        (a, b) => a == b,
    }
}

/// Attributes that hold numbers.
fn numbers<'a>(node: &Node<'a, '_>) -> impl Iterator<Item = &'a str> {
    let names = ["x", "y", "x1", "y1", "x2", "y2", "cx", "cy", "r", "width", "height", "font-size"];
    node.attributes().filter(move |a| names.contains(&a.name())).map(|a| a.value())
}

#[test]
fn files_are_complete_and_the_document_reads_back() {
    for shape in &SHAPES {
        let profile = profile(shape);
        let place = Place::new();
        let folder = place.path().join("made/for/it");
        let mut written: Vec<String> = write(&profile, &folder)
            .unwrap()
            .iter()
            .map(|path| path.strip_prefix(&folder).unwrap().to_string_lossy().into_owned())
            .collect();
        written.sort();
        let there: BTreeSet<String> = std::fs::read_dir(&folder)
            .unwrap()
            .map(|e| e.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        assert_eq!(written, there.into_iter().collect::<Vec<_>>());
        assert_eq!(written.len(), 2 + CHARTS.len());
        let document = read(&folder, "profile.json");
        let back: Profile = serde_json::from_str(&document).unwrap();
        let made = serde_json::to_value(&profile).unwrap();
        assert!(is_same(&serde_json::to_value(&back).unwrap(), &made), "{document}");
        let value: Value = serde_json::from_str(&document).unwrap();
        for key in ["points", "knee", "recommended", "why"] {
            assert!(value.get(key).is_some(), "{key}");
        }
        for key in [
            "gpu_layers",
            "decode_ms",
            "predicted_decode_ms",
            "prefill_tps",
            "speedup",
            "marginal",
            "cpu_ms",
            "gpu_ms",
            "crossing_ms",
            "idle_ms",
        ] {
            assert!(value["points"][0].get(key).is_some(), "{key}");
        }
        // A second time, over the existing files.
        write(&profile, &folder).unwrap();
    }
}

#[test]
fn a_folder_that_cannot_be_created_is_an_error() {
    let place = Place::new();
    let file = place.file("file", "");
    assert!(write(&profile(&SHAPES[0]), &file.join("below")).is_err());
}

#[test]
fn charts_are_well_formed_and_every_point_is_in_them() {
    for shape in &SHAPES {
        let profile = profile(shape);
        let place = Place::new();
        write(&profile, place.path()).unwrap();
        let measured = profile.points.iter().filter(|p| p.is_measured()).count();
        let saved = profile.points.iter().filter(|p| p.marginal.is_some()).count();
        for chart in CHARTS {
            let svg = read(place.path(), &format!("{chart}.svg"));
            let document =
                Document::parse(&svg).unwrap_or_else(|e| panic!("{}: {chart}: {e}", shape.name));
            let nodes = || document.descendants().filter(Node::is_element);
            let root = document.root_element();
            assert!(root.attribute("aria-label").is_some_and(|label| label.len() > 20), "{chart}");
            let limit = |name| root.attribute(name).unwrap().parse::<f64>().unwrap() * 10.0;
            let (width, height) = (limit("width"), limit("height"));
            for node in nodes().skip(1) {
                for number in numbers(&node) {
                    let number: f64 =
                        number.parse().unwrap_or_else(|_| panic!("{chart}: {number}"));
                    assert!((-1.0..=width.max(height)).contains(&number), "{chart}: {number}");
                }
            }
            let of = |tag: &str, class: &str| {
                let holds = |n: &Node| {
                    n.attribute("class").is_some_and(|c| c.split(' ').any(|c| c == class))
                };
                nodes().filter(|n| n.has_tag_name(tag) && holds(n)).count()
            };
            match chart {
                "speedup" => {
                    assert_eq!(of("circle", "mark"), measured, "{}", shape.name);
                    assert_eq!(of("polyline", "s-predicted"), 2 * usize::from(shape.predicted));
                }
                "layers" => assert_eq!(of("rect", "mark") - of("rect", "f-hidden"), saved),
                "time" => assert!(of("rect", "f-cpu") + of("rect", "f-gpu") >= measured),
                "prefill" | "memory" => assert!(of("circle", "mark") >= measured, "{chart}"),
                _ => assert_eq!(of("rect", "mark") > 0, shape.timeline),
            }
            // Marks have captions.
            for mark in nodes().filter(|n| n.attribute("class").is_some_and(|c| c.contains("mark")))
            {
                let title = mark.children().find(|n| n.has_tag_name("title"));
                assert!(
                    title.and_then(|t| t.text()).is_some_and(|text| text.contains(' ')),
                    "{chart}"
                );
            }
        }
    }
}

/// A run may have been interrupted or may have measured nothing.
#[test]
fn little_or_nothing_measured_is_drawn_too() {
    for count in 0..3 {
        for time in [0.0, 1e-9, 1e12, f64::NAN, f64::INFINITY] {
            let mut little = profile(&SHAPES[1]);
            little.points.truncate(count);
            for point in &mut little.points {
                point.decode_ms = time;
                point.speedup = 1.0 / time;
                point.marginal = Some(-time);
                point.gpu_ms = time;
                point.fits = false;
            }
            little.read_gbps = time;
            let place = Place::new();
            write(&little, place.path()).unwrap();
            for chart in CHARTS {
                let svg = read(place.path(), &format!("{chart}.svg"));
                let document = Document::parse(&svg).unwrap();
                let elements = document.descendants().filter(Node::is_element).skip(1);
                let numbers =
                    elements.flat_map(|node| numbers(&node).map(str::to_owned).collect::<Vec<_>>());
                for number in numbers {
                    let number: f64 =
                        number.parse().unwrap_or_else(|_| panic!("{chart}: {number}"));
                    assert!(number.abs() < 1e5, "{chart}: {number} for {time}");
                }
            }
            assert!(text(&little).contains("recommended"));
        }
    }
}

/// The page has the step of each of some numbers of layers, of which one is shown, and says what its spans read.
#[test]
fn steps_at_other_numbers_of_layers_can_be_chosen() {
    let mut profile = profile(&SHAPES[0]);
    let step = |gpu_layers| Step { gpu_layers, ms: 12.5, of: 31, spans: profile.timeline.clone() };
    profile.steps = [0, profile.recommended].map(step).to_vec();
    let place = Place::new();
    write(&profile, place.path()).unwrap();
    let page = read(place.path(), "profile.html");
    let chosen = format!("<option value=\"{}\" selected>", profile.recommended);
    assert!(page.contains(&chosen) && page.contains("<option value=\"0\">"), "{chosen}");
    assert_eq!(page.matches("class=\"chart step\"").count(), 2);
    assert_eq!(page.matches("data-step=\"0\" tabindex=\"0\" hidden>").count(), 1);
    assert!(page.contains("median duration, 12.5\u{a0}ms, of 31 that"));
    let svg = read(place.path(), "timeline.svg");
    assert!(svg.contains(" GB/s") && svg.contains("19.1 MiB, "), "no rate: {svg}");
}

/// Thousands of ops are drawn as some hundred distinguishable spans, and no time is lost.
#[test]
fn a_long_step_stays_a_small_picture() {
    let mut long = profile(&SHAPES[0]);
    let op = long.timeline[0].clone();
    let spans = (0..50_000).map(|i| bilayer_measure::profile::Span {
        start_us: f64::from(i),
        us: 1.0,
        ..op.clone()
    });
    long.timeline = spans.collect();
    let place = Place::new();
    write(&long, place.path()).unwrap();
    let svg = read(place.path(), "timeline.svg");
    let document = Document::parse(&svg).unwrap();
    let marks = || {
        document.descendants().filter(|n| n.attribute("class").is_some_and(|c| c.contains("mark")))
    };
    assert!((100..1000).contains(&marks().count()), "{}", marks().count());
    let wide: f64 = marks().map(|n| n.attribute("width").unwrap().parse::<f64>().unwrap()).sum();
    assert!((wide - 8700.0).abs() < 10.0 * marks().count() as f64 / 10.0, "{wide}");
}

#[test]
fn pages_are_self_contained_and_escape_names() {
    for shape in &SHAPES {
        let profile = profile(shape);
        let place = Place::new();
        write(&profile, place.path()).unwrap();
        let page = read(place.path(), "profile.html");
        for loader in ["src=", "@import", "url(", "<base", "<iframe", "fetch(", "import("] {
            assert!(!page.contains(loader), "{loader}");
        }
        let links = page.matches("http").count();
        let namespaces = page.matches("http://www.w3.org/2000/svg").count();
        assert_eq!(links - page.matches("http-equiv").count(), namespaces);
        // The two of the template: the document, and the script that handles hovering.
        assert_eq!(page.matches("<script").count(), 2, "{}", shape.name);
        assert_eq!(page.matches("</script").count(), 2, "{}", shape.name);
        // Browsers leave backgrounds out of a print.
        for rule in [
            ".bars .track i,.tag.recommended{-webkit-print-color-adjust:exact",
            ".copy{display:none}",
        ] {
            assert!(page.contains(rule), "{rule}");
        }
    }
}

#[test]
fn the_table_for_the_terminal_has_a_row_per_point() {
    for shape in &SHAPES {
        let profile = profile(shape);
        let text = text(&profile);
        let rows: Vec<&str> = text.split("\n\n").next().unwrap().lines().skip(2).collect();
        assert_eq!(rows.len(), profile.points.len());
        for (row, point) in rows.iter().zip(&profile.points) {
            let n = row.split_whitespace().next().unwrap();
            assert_eq!(n, point.gpu_layers.to_string());
            assert_eq!(row.contains("recommended"), point.gpu_layers == profile.recommended);
            assert_eq!(row.contains("does not fit"), !point.fits);
        }
        assert!(text.ends_with(&format!("-ngl {}\n{}\n", profile.recommended, profile.why)));
    }
}

#[test]
fn a_browser_shows_every_number_in_both_themes() {
    let Some(chromium) = browser::chromium() else { return };
    // A profile with a hostile name, and one without predictions and steps.
    let pages = [(&SHAPES[3], Theme::Dark), (&SHAPES[2], Theme::Light)];
    let mut pages_colours = Vec::new();
    for (shape, theme) in pages {
        let profile = profile(shape);
        let place = Place::new();
        write(&profile, place.path()).unwrap();
        let html = read(place.path(), "profile.html").replace("</body>", QUESTIONS);
        let page = place.file("asked.html", html);
        let ran = browser::load(&chromium, &page, &place.path().join("browser"), theme).good();
        let complaints: Vec<&str> =
            ran.err.lines().filter(|line| line.contains("CONSOLE")).collect();
        assert_eq!(complaints, Vec::<&str>::new());
        let found = answer(&ran.out);
        assert_charts(&found, CHARTS.len() - usize::from(!shape.timeline));
        assert_cells(&found, &profile);
        assert!(is_same(&found["document"], &serde_json::to_value(&profile).unwrap()));
        assert_eq!(found["model"], shape.name);
        assert_eq!(found["loaded"], serde_json::json!([]));
        assert_eq!(found["wide"], 0, "wider than the window");
        let heading = found["heading"].as_str().unwrap();
        assert_eq!(heading.contains("Keep every layer"), profile.recommended == 0, "{heading}");
        let columns = 3;
        let pointed = found["pointed"].as_array().unwrap();
        assert_eq!(pointed.len(), columns + 1, "columns of charts and the row: {pointed:?}");
        assert!(pointed.iter().all(|n| n == "1"), "{pointed:?}");
        let picture = std::fs::read(place.path().join("asked.png")).unwrap();
        assert!(
            picture.starts_with(b"\x89PNG") && picture.len() > 20_000,
            "{} bytes",
            picture.len()
        );
        pages_colours.push((theme, found["colours"].clone()));
    }
    let [(_, dark), (_, light)] = &pages_colours[..] else { panic!() };
    for what in ["page", "words", "chart", "curve"] {
        assert_ne!(dark[what], light[what], "{what} does not follow the theme");
    }
    assert_eq!(light["chart"], "rgb(255, 255, 255)");
}

/// A speedup chart whose points mostly lie below a tenth has a logarithmic scale, and tokens per second beside it.
#[test]
fn low_speedups_are_drawn_on_a_logarithmic_scale() {
    let chart = |profile: &Profile| {
        let place = Place::new();
        write(profile, place.path()).unwrap();
        read(place.path(), "speedup.svg")
    };
    let usual = profile(&SHAPES[3]);
    let mut low = usual.clone();
    let alone_ms = low.points[0].decode_ms;
    for point in &mut low.points[1..] {
        point.decode_ms = 20.0 * alone_ms;
        point.speedup = 0.05;
    }
    let (usual, low) = (chart(&usual), chart(&low));
    let label = |svg: &str, text: &str| svg.lines().any(|line| line.trim() == text);
    for svg in [&usual, &low] {
        assert!(label(svg, "1\u{d7}") && label(svg, "tok/s"), "{svg}");
    }
    assert!(label(&low, "0.1\u{d7}") && !label(&usual, "0.1\u{d7}"), "{low}");
    assert!(label(&usual, "0\u{d7}") && !label(&low, "0\u{d7}"), "{usual}");
}

/// A profile says why its predictions are far off: the device that was slower alone, or what lies between devices.
#[test]
fn predictions_that_are_far_off_are_explained() {
    let page = |change: &dyn Fn(&mut Profile)| {
        let mut profile = profile(&SHAPES[3]);
        change(&mut profile);
        let place = Place::new();
        write(&profile, place.path()).unwrap();
        read(place.path(), "profile.html")
    };
    let near = page(&|_| ());
    assert!(!near.contains("The reason:") && !near.contains("the time between them"));
    let slow_cpu = page(&|p| p.points[0].predicted_decode_ms = Some(p.points[0].decode_ms / 2.0));
    assert!(slow_cpu.contains("the CPU was 2.0 times slower than when its layers were timed"));
    let slow_gpu = page(&|p| {
        let last = p.points.last_mut().unwrap();
        last.predicted_decode_ms = Some(last.decode_ms * 3.0);
    });
    assert!(slow_gpu.contains("the GPU was 3.0 times faster than when its layers were timed"));
    let between = page(&|p| p.points[3].predicted_decode_ms = Some(p.points[3].decode_ms / 2.0));
    assert!(between.contains("what is off is the time between them"));
}

/// A profile of a machine without a GPU.
fn on_cpu() -> Profile {
    let mut profile = profile(&SHAPES[3]);
    profile.points.truncate(1);
    profile.gpu = "no GPU".to_owned();
    profile.recommended = 0;
    let threads = |threads: usize, decode_tps: f64| AtThreads {
        threads,
        decode_tps,
        prefill_tps: 30.0 * threads as f64,
        weight_gbps: 2.0 * decode_tps,
        read_gbps: if threads == 1 { f64::NAN } else { 30.0 },
    };
    let sequences = |sequences: usize, decode_tps: f64| AtSequences { sequences, decode_tps };
    let curves = Curves {
        threads: vec![threads(1, 4.0), threads(2, 7.5), threads(4, 9.5), threads(6, 9.6)],
        sequences: vec![sequences(1, 9.6), sequences(2, 15.25), sequences(16, 31.5)],
    };
    profile.why = curves.why();
    profile.curves = Some(curves);
    profile
}

#[test]
fn without_a_gpu_the_cpu_is_drawn() {
    let profile = on_cpu();
    let place = Place::new();
    let written = write(&profile, place.path()).unwrap();
    assert_eq!(written.len(), 2 + CHARTS_OF_CPU.len());
    let back: Profile = serde_json::from_str(&read(place.path(), "profile.json")).unwrap();
    let is_kept = |of: &Profile| serde_json::to_value(of.curves.as_ref()).unwrap();
    assert_eq!(is_kept(&back), is_kept(&profile));
    for chart in CHARTS_OF_CPU {
        let svg = read(place.path(), &format!("{chart}.svg"));
        let document = Document::parse(&svg).unwrap();
        let titles = document.descendants().filter(|node| node.has_tag_name("title")).count();
        let points = match chart {
            "threads" | "prompts" => 4,
            "bandwidth" => 7,
            "sequences" => 3,
            _ => 1,
        };
        assert!(titles >= points, "{chart}: {titles}");
    }
    let expected = "\
threads  decode  prefill  weights  file read
          tok/s    tok/s     GB/s       GB/s
      1    4.00    30.00     8.00          -
      2    7.50    60.00    15.00      30.00
      4    9.50      120    19.00      30.00
      6    9.60      180    19.20      30.00

sequences  decode   each  step
            tok/s  tok/s    ms
        1    9.60   9.60   104
        2   15.25   7.62   131
       16   31.50   1.97   508

recommended: -t 4
4 threads decode 9.50 tok/s, 2.4 times as many as one thread; 16 sequences together 31.5 tok/s
";
    assert_eq!(text(&profile), expected);
    let Some(chromium) = browser::chromium() else { return };
    let html = read(place.path(), "profile.html").replace("</body>", QUESTIONS);
    let html = html.replace("document.querySelector('.f-hidden[data-n=\"1\"]')", "document.body");
    let html = html.replace("'.chart .s-gpu'", "'.chart .s-cpu'");
    let page = place.file("asked.html", html);
    let ran = browser::load(&chromium, &page, &place.path().join("browser"), Theme::Dark).good();
    assert!(!ran.err.contains("CONSOLE"), "{}", ran.err);
    let found = answer(&ran.out);
    assert_charts(&found, CHARTS_OF_CPU.len());
    assert_eq!(found["heading"], "Run on 4 threads");
    assert_eq!(found["wide"], 0, "wider than the window");
}

/// A window narrower than a browser's narrowest: the page in a frame, whose answer the window shows.
const FRAME: &str = r#"<!doctype html><body style="margin:0"><script>
  addEventListener('message', event => {
    const answer = document.createElement('pre');
    answer.id = 'answer';
    answer.textContent = event.data;
    document.body.append(answer);
  });
</script><iframe src="asked.html" style="display:block;border:0;width:390px;height:6000px"></iframe></body>"#;

/// A page in windows of three widths in both themes: nothing is wider than the window but tables, and text is readable.
fn assert_fits(chromium: &Path, place: &Place, page: &str, charts: usize) {
    let asked = QUESTIONS
        .replace("document.querySelector('.f-hidden[data-n=\"1\"]')", "document.body")
        .replace("'.chart .s-gpu'", "'body'")
        .replace("'.chart .f-surface'", "'body'")
        .replace(
            "append(answer);",
            "append(answer);\n  parent.postMessage(answer.textContent, '*');",
        );
    let html = read(place.path(), page).replace("</body>", &asked);
    let asked = place.file("asked.html", html);
    let frame = place.file("frame.html", FRAME);
    for width in [390, 1200, 1600] {
        for theme in [Theme::Light, Theme::Dark] {
            let (shown, size) = match width {
                390 => (&frame, (600, 6000)),
                width => (&asked, (width, 1600)),
            };
            let folder = place.path().join("browser");
            let ran = browser::load_in(size, chromium, shown, (&folder, theme)).good();
            assert!(!ran.err.contains("CONSOLE"), "{}", ran.err);
            let found = answer(&ran.out);
            let about = format!("{page} at {width} in {theme:?}");
            assert_eq!(found["window"], width, "{about}");
            assert_eq!(found["wide"], 0, "{about}: wider than the window");
            assert_eq!(found["sideways"], serde_json::json!([]), "{about}: scrolls");
            let drawn = found["charts"].as_array().unwrap();
            assert_eq!(drawn.len(), charts, "{about}");
            assert!(
                drawn.iter().all(|size| size[0].as_f64().unwrap() <= f64::from(width).min(1100.0)),
                "{about}: {drawn:?}"
            );
            if charts > 0 {
                let small = found["small"].as_f64().unwrap();
                assert!(small >= 9.0, "{about}: text {small} pixels high");
            }
            let picture = std::fs::read(shown.with_extension("png")).unwrap();
            assert!(picture.len() > 15_000, "{about}: {} bytes", picture.len());
            if let Some(folder) = std::env::var_os("BILAYER_PICTURES") {
                let name = format!("{page}-{width}-{theme:?}.png");
                std::fs::write(Path::new(&folder).join(name), picture).unwrap();
            }
        }
    }
}

#[test]
fn charts_fit_every_window_in_both_themes() {
    let Some(chromium) = browser::chromium() else { return };
    for (name, profile, charts) in [
        ("offloaded.html", profile(&SHAPES[0]), CHARTS.len()),
        ("cpu.html", on_cpu(), CHARTS_OF_CPU.len()),
    ] {
        let place = Place::new();
        write(&profile, place.path()).unwrap();
        std::fs::rename(place.path().join("profile.html"), place.path().join(name)).unwrap();
        assert_fits(&chromium, &place, name, charts);
    }
}

/// The document in a page.
fn data(page: &str) -> Value {
    let json = page.split("id=\"data\">").nth(1).unwrap().split("</script>").next().unwrap();
    serde_json::from_str(json).unwrap()
}

/// `bench` and `perplexity` write pages of the same design, with every number.
#[test]
fn results_are_compared_on_pages_of_the_same_design() {
    let place = Place::new();
    place.file("model.gguf", words::tiny(bilayer_quant::Type::F32, 1));
    let bench = "bench -m model.gguf -p 16 -n 4 -r 2 -ngl 0 --no-probe";
    let mut earlier = place.run(&format!("{bench} -o json")).json();
    for result in earlier.as_array_mut().unwrap() {
        result["build_commit"] = "<b>older</b>".into();
    }
    place.file("earlier.json", earlier.to_string());
    let ran =
        place.run(&format!("{bench} -d 0,8 -o jsonl --html bench.html --compare earlier.json"));
    let own: Vec<Value> =
        ran.good().out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(own.len(), 4, "two tests at two depths");
    let page = read(place.path(), "bench.html");
    let all = data(&page);
    assert_eq!(all.as_array().unwrap().len(), 6);
    assert!(is_same(&all[0], &earlier[0]) && is_same(&all[2], &own[0]), "{all}");
    for title in [">pp16<", ">tg4<", ">pp16 at d8<", ">tg4 at d8<"] {
        assert!(page.contains(title), "{title}");
    }
    assert!(page.contains("commit &lt;b&gt;older") && !page.contains("<b>older"), "it is escaped");
    assert_eq!(page.matches("class=\"track\"").count(), 6, "a bar for each result");
    for result in all.as_array().unwrap() {
        let speed = format!("<td>{:.2}</td>", result["avg_ts"].as_f64().unwrap());
        assert!(page.contains(&speed), "{speed}");
    }
    // Settings that differ are named, and results that do not are numbered.
    let bench = "bench -m model.gguf -p 4 -n 0 -r 1 -ngl 0 --no-probe";
    let flags = "-nkvo 0,1 --html settings.html --compare earlier.json --compare earlier.json";
    place.run(&format!("{bench} {flags}")).good();
    let page_of_settings = read(place.path(), "settings.html");
    for name in ["-nkvo false", "-nkvo true", " (2)</span>"] {
        assert!(page_of_settings.contains(name), "{name}");
    }
    let wrong = place.file("wrong.json", "[{\"a\": 1}]");
    let refused = place.run(&format!("{bench} --html b.html --compare {}", wrong.display()));
    assert!(refused.code == Some(2) && refused.err.contains("no result of a test"), "{refused:?}");

    place.file("text.txt", "once upon a time there was a word ".repeat(30));
    place.run("perplexity -m model.gguf -f text.txt -c 64 -ngl 0 --kl-base base.kld").good();
    let ran =
        place.run("perplexity -m model.gguf -b 64 -ngl 0 --kl base.kld --json --html words.html");
    let document = ran.json();
    let page = read(place.path(), "words.html");
    assert!(is_same(&data(&page), &document), "{document}");
    let cells = page.split("<td>").skip(1);
    let cells = cells.map(|cell| cell.split("</td>").next().unwrap().parse().unwrap());
    let cells: Vec<Value> = cells.map(|number: f64| number.into()).collect();
    let shown: Vec<&str> = document.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(cells.len(), shown.len(), "a row for each number");
    for name in shown {
        assert!(cells.iter().any(|cell| is_same(cell, &document[name])), "{name}: {cells:?}");
    }
    let perplexity = document["perplexity"].as_f64().unwrap();
    assert!(page.contains(&format!("<h1 id=\"answer\">Perplexity {perplexity:.4}</h1>")));
    let Some(chromium) = browser::chromium() else { return };
    assert_fits(&chromium, &place, "bench.html", 0);
    assert_fits(&chromium, &place, "words.html", 1);
}

/// `evaluate` judges each kind of case, compares models, and ends with a code of its own below the floor.
#[test]
fn evaluations_have_a_floor_and_a_page() {
    let place = Place::new();
    place.file("model.gguf", words::tiny(bilayer_quant::Type::F32, 1));
    place.file("other.gguf", words::tiny(bilayer_quant::Type::F32, 2));
    place.file("encoder.gguf", words::scorer("bert", &["good", "bad"]));
    let case = "{\"id\":\"<b>a</b>\",\"prompt\":\"abc\",\"max_tokens\":6,";
    place.file("any.jsonl", format!("{case}\"regex\":\"\"}}\n"));
    let evaluate = "evaluate --json -ngl 0 --data";
    let found = place.run(&format!("{evaluate} any.jsonl -m model.gguf")).json();
    let answer = found["models"][0]["outcomes"][0]["answer"].as_str().unwrap().to_owned();
    let plain = place.run("run -m model.gguf -p abc -n 6 --temp 0 -ngl 0 --json").json();
    assert_eq!(plain["text"].as_str().unwrap(), answer, "greedy, as `run`");
    let exact = format!("{case}\"exact\":{}}}\n", Value::from(answer.as_str()));
    let fields = "{\"prompt\":\"a\",\"fields\":{\"a\":true,\"b\":1},\"schema\":{\"type\":\"object\",\
        \"properties\":{\"a\":{\"const\":true}},\"required\":[\"a\"],\"additionalProperties\":false}}\n";
    place.file("cases.jsonl", format!("{exact}\n{fields}"));
    let two = "-m A=model.gguf -m other.gguf -np 2 --price-per-hour 0.36 --html page.html";
    let ran = place.run(&format!("{evaluate} cases.jsonl {two} --floor 0.5"));
    assert_eq!(ran.code, Some(3), "{ran:?}");
    assert!(ran.err.contains("below the floor of 0.5: other"), "{ran:?}");
    let document: Value = serde_json::from_str(&ran.out).unwrap();
    let models = document["models"].as_array().unwrap();
    let of = |model: usize, name: &str| models[model][name].clone();
    assert_eq!((of(0, "name"), of(1, "name")), ("A".into(), "other".into()));
    assert_eq!((of(0, "quality"), of(1, "quality")), (0.5.into(), 0.0.into()));
    assert_eq!((of(0, "passes"), of(1, "passes")), (true.into(), false.into()));
    assert_eq!(of(0, "score"), 0.75, "one of two fields is right");
    assert_eq!(models[0]["outcomes"][1]["note"], "`b` is missing");
    assert_eq!(models[0]["outcomes"][1]["line"], 3);
    let seconds = of(0, "seconds").as_f64().unwrap();
    let price = of(0, "price_per_1000_cases").as_f64().unwrap();
    assert!((price - 0.36 / 3600.0 * seconds / 2.0 * 1e3).abs() < 1e-9, "{price}");
    place.run(&format!("{evaluate} cases.jsonl -m model.gguf --floor 0.5")).good();
    let page = read(place.path(), "page.html");
    assert!(is_same(&data(&page), &document), "the page has all numbers");
    assert!(page.contains("&lt;b&gt;a") && !page.contains("<b>a"), "it is escaped");

    let labels = "{\"prompt\":\"a\",\"label\":\"good\"}\n{\"prompt\":\"a\",\"label\":\"bad\"}\n";
    place.file("labels.jsonl", labels);
    let found = place.run(&format!("{evaluate} labels.jsonl -m encoder.gguf -np 2")).json();
    assert_eq!(found["models"][0]["quality"], 0.5);
    let label = place.run("classify -m encoder.gguf -ngl 0 a").json()["label"].clone();
    assert_eq!(found["models"][0]["outcomes"][0]["answer"], label);

    assert_similarity(&place, &answer);

    for (name, text, model, reason) in [
        ("a.jsonl", "{\"prompt\":\"a\"}", "model.gguf", "a.jsonl: line 1: `exact`: missing"),
        (
            "b.jsonl",
            "\n{\"prompt\":\"a\",\"label\":\"x\"}",
            "encoder.gguf",
            "line 2: `label`: scorer has no label `x`; it has good, bad",
        ),
        (
            "c.jsonl",
            "{\"prompt\":\"a\",\"similar\":\"x\"}",
            "model.gguf",
            "line 1: `similar`: it takes an encoder",
        ),
        (
            "d.jsonl",
            "{\"prompt\":\"a\",\"exact\":\"\",\"schema\":{\"type\":7}}",
            "model.gguf",
            "line 1: `schema`",
        ),
    ] {
        place.file(name, text);
        let ran = place.run(&format!("{evaluate} {name} -m {model} --html none.html"));
        assert!(ran.code == Some(2) && ran.err.contains(reason), "{reason}: {ran:?}");
    }
    assert!(!place.path().join("none.html").exists());
    let Some(chromium) = browser::chromium() else { return };
    assert_fits(&chromium, &place, "page.html", 0);
}

/// Placements of one model are compared side by side, here on a simulated machine.
#[test]
fn evaluations_compare_placements() {
    let place = Place::new();
    let device = |name: &str, gbps: u32, tops: u32| {
        format!(
            "[{name}]\nname = \"{name}\"\nmemory = \"8GiB\"\nread_gbps = {gbps}\ntops = {tops}\n"
        )
    };
    place.file("machine.toml", device("cpu", 10, 1) + &device("gpu", 100, 10));
    let plain = place.run("run -p ROMEO: -n 4 --temp 0 -ngl 0 --json").json();
    let right = format!("{{\"prompt\":\"ROMEO:\",\"max_tokens\":4,\"exact\":{}}}\n", plain["text"]);
    place.file("cases.jsonl", right.clone() + &right.replace("exact\":\"", "exact\":\"no "));
    let evaluate = "evaluate --data cases.jsonl -ngl 0,all --simulate machine.toml";
    let ran = place.run(&format!("{evaluate} --json --html page.html --floor 0.5")).good();
    let document: Value = serde_json::from_str(&ran.out).unwrap();
    let models = document["models"].as_array().unwrap();
    let of = |name: &str| models.iter().map(|model| model[name].clone()).collect::<Vec<_>>();
    assert_eq!(of("name"), ["demo -ngl 0", "demo -ngl all"]);
    assert_eq!(of("placement"), ["out:cpu 5-0:cpu", "out:gpu 5-0:gpu"]);
    assert_eq!(of("quality"), [0.5, 0.5]);
    let speeds = of("tokens_per_second").iter().map(|n| n.as_f64().unwrap()).collect::<Vec<_>>();
    assert!(speeds[1] > 4.0 * speeds[0], "the GPU is ten times as fast: {speeds:?}");
    assert!(is_same(&data(&read(place.path(), "page.html")), &document));
    let refused = place.run(&format!("{evaluate} --floor 0.6"));
    assert_eq!(refused.code, Some(3), "{refused:?}");
    let below = "below the floor of 0.6: demo -ngl 0, demo -ngl all";
    assert!(refused.err.contains(below), "{refused:?}");
}

/// As many answers are in the making as a step has tokens; without a floor the page names the best model.
#[test]
fn more_cases_are_answered_at_once_than_a_step_has_tokens() {
    let place = Place::new();
    place.file("model.gguf", words::tiny(bilayer_quant::Type::F32, 1));
    place.file("other.gguf", words::tiny(bilayer_quant::Type::F32, 2));
    let case = "{\"prompt\":\"abc\",\"max_tokens\":2,\"regex\":\"\"}\n";
    place.file("many.jsonl", case.repeat(12));
    let many = "many.jsonl -m model.gguf -m other.gguf -np 12 -ub 8 --html many.html";
    let ran = place.run(&format!("evaluate --json -ngl 0 --data {many}")).good();
    assert!(ran.err.contains("note: 12 cases were answered at once (-np)"), "{ran:?}");
    assert_eq!(serde_json::from_str::<Value>(&ran.out).unwrap()["parallel"], 12);
    assert!(read(place.path(), "many.html").contains("100.0 % of the cases pass with model"));
}

/// Similarity by an encoder of its own: the answer itself passes, another text has the cosine of `embed`.
fn assert_similarity(place: &Place, answer: &str) {
    let case = "{\"prompt\":\"abc\",\"max_tokens\":6,";
    let similar = |text: &str, least: f64| {
        format!("{case}\"similar\":{},\"at_least\":{least}}}\n", Value::from(text))
    };
    place.file("similar.jsonl", similar(answer, 0.999) + &similar("x y z", 0.999));
    let found = "similar.jsonl -m model.gguf --encoder encoder.gguf";
    let found = place.run(&format!("evaluate --json -ngl 0 --data {found}")).json();
    let outcomes = &found["models"][0]["outcomes"];
    assert_eq!((&outcomes[0]["passed"], &outcomes[1]["passed"]), (&true.into(), &false.into()));
    place.file("texts.jsonl", format!("{}\n\"x y z\"\n", Value::from(answer.trim())));
    let embed = "embed -m encoder.gguf -ngl 0 --jsonl texts.jsonl --embd-output-format json+";
    let cosine = place.run(embed).json()["cosineSimilarity"][0][1].as_f64().unwrap();
    let score = outcomes[1]["score"].as_f64().unwrap();
    assert!((score - cosine.max(0.0)).abs() < 1e-4, "{score}, not {cosine}");
}

/// `cost` measures a speed and computes prices from it; energy comes from the counters or a given power.
#[test]
fn tokens_have_a_price() {
    let place = Place::new();
    place.file("model.gguf", words::tiny(bilayer_quant::Type::F32, 1));
    place.file("encoder.gguf", words::scorer("bert", &["good", "bad"]));
    let cost = "cost --json -p 8 -n 4 -r 1 -ngl 0 -m";
    let prices = "--price-per-hour 0.72 --utilization 0.5 --watts 100 --energy-price 0.6";
    let found = place.run(&format!("{cost} model.gguf {prices} --against 2e3,2e3")).json();
    let hour = 0.72 / 0.5 + 0.06;
    for part in ["prompt", "generated"] {
        let speed = found[part]["tokens_per_second"].as_f64().unwrap();
        let price = found[part]["price_per_million"].as_f64().unwrap();
        assert!((price / (hour / 3600.0 * 1e6 / speed) - 1.0).abs() < 1e-9, "{found}");
        assert_eq!(found[part]["watts"], 100.0);
    }
    assert!(found["break_even"]["requests_day"].as_f64().unwrap() > 0.0, "{found}");
    let never = place.run(&format!("{cost} model.gguf {prices} --against 0,0")).json();
    assert_eq!(never["break_even"]["requests_day"], Value::Null);
    let encoder = place.run(&format!("{cost} encoder.gguf -np 2")).json();
    assert_eq!((&encoder["generated"], &encoder["generated_tokens"]), (&Value::Null, &0.into()));
    let counter = place.path().join("power/intel-rapl:0");
    std::fs::create_dir_all(&counter).unwrap();
    for (name, text) in [("name", "package-0"), ("energy_uj", "5"), ("max_energy_range_uj", "9")] {
        std::fs::write(counter.join(name), text).unwrap();
    }
    let counted =
        place.run(&format!("{cost} model.gguf --powercap power --energy-price 0.3")).json();
    assert_eq!(counted["prompt"]["watts"], 0.0);
    assert_simulated_power(&place);
    // A counter that cannot be read: energy is left out, unless it is to be paid for.
    let locked = place.path().join("locked/intel-rapl:0");
    std::fs::create_dir_all(locked.join("energy_uj")).unwrap();
    std::fs::write(locked.join("name"), "package-0").unwrap();
    let without = place.run(&format!("{cost} model.gguf --powercap locked")).json();
    assert_eq!(without["prompt"]["watts"], Value::Null);
    let ran = place.run(&format!("{cost} model.gguf --powercap locked --energy-price 1"));
    let named = ran.err.contains("power is unknown: ") && ran.err.contains("energy_uj");
    assert!(ran.code == Some(2) && named, "{ran:?}");
    for (flags, reason) in [
        (
            "--powercap nowhere --energy-price 1",
            "power is unknown: nowhere: no energy counters; give --watts",
        ),
        ("--against 1", "it must be two prices such as 0.15,0.60"),
        ("--against 1,2", "--against takes a price of this machine"),
        ("--lifetime 3", "--purchase <PRICE>"),
        ("-np 9 -ub 8", "(-np) is 9; it must be at most the 8 tokens of a step (-ub)"),
        ("-c 11", "-p and -n make 12 tokens, and the context (-c) has 11"),
        ("--utilization 0", "above 0 and at most 1"),
    ] {
        let ran = place.run(&format!("{cost} model.gguf {flags}"));
        assert!(ran.code == Some(2) && ran.err.contains(reason), "{flags}: {ran:?}");
    }
}

/// Counters of this machine say nothing of a simulated one; a power that is given is that of an evaluation without prices, too.
fn assert_simulated_power(place: &Place) {
    place.file("machine.toml", include_str!("../examples/machines/rtx-4090.toml"));
    place.file("any.jsonl", "{\"prompt\":\"abc\",\"max_tokens\":2,\"regex\":\"\"}\n");
    let evaluate = "evaluate --json -m model.gguf -ngl 0 --data any.jsonl";
    let cost = "cost --json -p 8 -n 4 -r 1 -ngl 0 -m model.gguf --powercap power";
    let watts = |line: &str| {
        let found = place.run(line).json();
        let part = if line.starts_with("cost") { &found["prompt"] } else { &found["models"][0] };
        part["watts"].as_f64()
    };
    assert_eq!(watts(&format!("{evaluate} --powercap power")), Some(0.0));
    assert_eq!(watts(&format!("{evaluate} --powercap power --watts 50")), Some(50.0));
    assert_eq!(watts(&format!("{evaluate} --powercap power --simulate machine.toml")), None);
    assert_eq!(watts(&format!("{cost} --simulate machine.toml")), None);
    assert_eq!(watts(&format!("{cost} --simulate machine.toml --watts 70")), Some(70.0));
    let ran = place.run(&format!("{cost} --simulate machine.toml --energy-price 1"));
    let why = "power is unknown: the machine is simulated; give --watts";
    assert!(ran.code == Some(2) && ran.err.contains(why), "{ran:?}");
    let warned = place.run(&format!("{evaluate} --powercap nowhere")).good();
    let why = "warning: energy is not counted: nowhere: no energy counters";
    assert!(warned.err.contains(why), "{warned:?}");
    assert!(!place.run(evaluate).good().err.contains("warning"));
    // Answers that are not computed are not judged.
    let blind = format!("{evaluate} --simulate machine.toml --no-compute");
    let ran = place.run(&format!("{blind} --floor 0.1"));
    assert!(ran.code == Some(2) && ran.err.contains("--no-compute"), "{ran:?}");
    place.run(&blind).good();
}

/// A counter that falls.
#[cfg(unix)]
mod falling {
    use std::fs::{File, OpenOptions, rename};
    use std::io::Write;
    use std::path::PathBuf;
    use std::process::Command;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread::{JoinHandle, spawn};

    /// A file that has one less at each reading. It is a pipe, in whose place another one is before it is written to: who opens
    /// it reads one number.
    pub struct Falling {
        path: PathBuf,
        is_over: Arc<AtomicBool>,
        writer: Option<JoinHandle<()>>,
    }

    impl Falling {
        pub fn begin(path: PathBuf) -> Falling {
            let place = path.clone();
            let renew = move || {
                let next = place.with_extension("next");
                assert!(Command::new("mkfifo").arg(&next).status().unwrap().success());
                rename(next, &place).unwrap();
            };
            renew();
            let is_over = Arc::new(AtomicBool::new(false));
            let (pipe, ended) = (path.clone(), is_over.clone());
            let write = move || {
                for uj in (0..1_000_000_000u64).rev() {
                    // Until somebody reads.
                    let mut pipe = OpenOptions::new().write(true).open(&pipe).unwrap();
                    if ended.load(Ordering::SeqCst) {
                        return;
                    }
                    renew();
                    pipe.write_all(uj.to_string().as_bytes()).unwrap();
                }
            };
            Falling { path, is_over, writer: Some(spawn(write)) }
        }
    }

    impl Drop for Falling {
        fn drop(&mut self) {
            self.is_over.store(true, Ordering::SeqCst);
            let writer = self.writer.take().unwrap();
            if !writer.is_finished() {
                drop(File::open(&self.path));
            }
            assert!(writer.join().is_ok() || std::thread::panicking(), "the writer failed");
        }
    }
}

/// A counter that falls during the run leaves energy out with a warning, or fails the command if energy has a price.
#[cfg(unix)]
#[test]
fn counters_that_fail_during_the_run_are_reported() {
    let place = Place::new();
    place.file("model.gguf", words::tiny(bilayer_quant::Type::F32, 1));
    let case = "{\"prompt\":\"abc\",\"max_tokens\":6,\"regex\":\"\"}\n";
    place.file("many.jsonl", case.repeat(20));
    let folder = place.path().join("power/intel-rapl:0");
    std::fs::create_dir_all(&folder).unwrap();
    for (name, text) in [("name", "package-0"), ("max_energy_range_uj", "9")] {
        std::fs::write(folder.join(name), text).unwrap();
    }
    let _counter = falling::Falling::begin(folder.join("energy_uj"));
    let cost = "cost -p 64 -n 16 -r 20 -ngl 0 -m model.gguf --powercap power";
    let evaluate = "evaluate -ngl 0 -m model.gguf --data many.jsonl --powercap power";
    for line in [cost, evaluate] {
        let left_out = place.run(line).good();
        let why =
            "warning: energy is not counted: power/intel-rapl:0/energy_uj: the counter fell from";
        assert!(left_out.err.contains(why), "{left_out:?}");
        let line = format!("{line} --energy-price 0.3");
        let lines = [line.clone(), format!("{line} --against 1,1")];
        for line in &lines[..if line.starts_with("cost") { 2 } else { 1 }] {
            let failed = place.run(line);
            let why = "power is unknown: power/intel-rapl:0/energy_uj: the counter fell from";
            let is_named = failed.err.contains(why) && failed.err.contains("; give --watts");
            assert!(failed.code == Some(2) && is_named, "{failed:?}");
            assert!(!failed.out.contains("break-even"), "{failed:?}");
        }
        place.run(&format!("{line} --watts 50")).good();
    }
}

/// A request costs the same, or less from the first one on, if the machine costs nothing.
#[test]
fn a_machine_that_costs_nothing_has_no_break_even() {
    let place = Place::new();
    place.file("model.gguf", words::tiny(bilayer_quant::Type::F32, 1));
    let cost = "cost -p 8 -n 4 -r 1 -ngl 0 -m model.gguf --price-per-hour 0 --against";
    let equal = place.run(&format!("{cost} 0,0")).good().out;
    assert!(equal.contains("break-even: none; both cost the same"), "{equal}");
    let less = place.run(&format!("{cost} 1,1")).good().out;
    assert!(less.contains("break-even: this machine costs less from the first request"), "{less}");
}

/// The prompt and the tokens that are asked for are measured, or refused.
#[test]
fn a_profile_measures_what_is_asked_for() {
    let place = Place::new();
    let profile = "profile -r 1 -ngl 0 --json --out none";
    let found = place.run(&format!("{profile} -p 400 -n 4 -ub 8")).json();
    assert_eq!(found["prompt_tokens"], 400);
    let sequences = found["curves"]["sequences"].as_array().unwrap();
    let sequences: Vec<u64> =
        sequences.iter().map(|at| at["sequences"].as_u64().unwrap()).collect();
    assert_eq!(sequences, [1, 2, 4, 8], "a step has eight tokens");
    for (flags, reason) in [
        ("-p 4096 -n 4", "the sum of -p and -n is 4100; it must be below 512, the model's context"),
        ("-c 2", "-c is 2; it must be at least 3"),
        ("-p 60 -n 4 -c 64", "the sum of -p and -n is 64; it must be below 64, the context (-c)"),
    ] {
        let ran = place.run(&format!("{profile} {flags}"));
        assert!(ran.code == Some(2) && ran.err.contains(reason), "{flags}: {ran:?}");
    }
}

/// The results of the script in the page.
fn answer(dom: &str) -> Value {
    let encoded = dom.split("<pre id=\"answer\">").nth(1).expect("the page's answer");
    let encoded = encoded.split("</pre>").next().unwrap();
    let mut bytes = Vec::new();
    let mut rest = encoded.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let hex = [rest.next().unwrap(), rest.next().unwrap()];
            bytes.push(u8::from_str_radix(std::str::from_utf8(&hex).unwrap(), 16).unwrap());
        } else {
            bytes.push(byte);
        }
    }
    serde_json::from_slice(&bytes).unwrap()
}

fn assert_charts(found: &Value, count: usize) {
    let charts = found["charts"].as_array().unwrap();
    assert_eq!(charts.len(), count);
    for chart in charts {
        assert!(chart[0].as_f64().unwrap() > 600.0 && chart[1].as_f64().unwrap() > 80.0, "{chart}");
    }
}

/// Every number of every point is visible in its row, exact in the markup and rounded in the text.
fn assert_cells(found: &Value, profile: &Profile) {
    let cells = found["cells"].as_array().unwrap();
    let mut expected = 0;
    for point in &profile.points {
        let document = serde_json::to_value(point).unwrap();
        for (key, value) in document.as_object().unwrap() {
            if !value.is_number() {
                continue;
            }
            expected += 1;
            let cell = cells
                .iter()
                .find(|cell| cell[0] == point.gpu_layers && cell[1] == *key)
                .unwrap_or_else(|| panic!("N = {}: no {key}", point.gpu_layers));
            assert!(is_same(&cell[2], value), "{key}: {} for {value}", cell[2]);
            let value = value.as_f64().unwrap();
            let shown = cell[3].as_str().unwrap().replace('\u{2212}', "-").replace('+', "");
            let places = shown.split_once('.').map_or(0, |(_, places)| places.len());
            let shown: f64 = shown.parse().unwrap();
            let scale = if key.ends_with("_bytes") { f64::from(1 << 20) } else { 1.0 };
            let half = 0.5 * 10f64.powi(-(places as i32)) + 1e-9;
            assert!((shown - value / scale).abs() <= half, "{key}: {shown} for {value}");
            assert!(cell[4].as_f64().unwrap() > 5.0, "{key} is not visible");
        }
    }
    assert_eq!(cells.len(), expected, "cells of no number");
}
