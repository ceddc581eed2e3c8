//! Golden files: written by hand from the description of the original's tables.

use std::sync::Arc;

use super::*;

#[derive(Clone, Default)]
struct Buffer(Arc<Mutex<Vec<u8>>>);

impl Write for Buffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The tables of a publisher and of a subscriber, with the figures of the seed's first example.
fn print(format: OutputFormat, headers: bool, intervals: bool, cpu: bool) -> String {
    let style = Style { format, headers, intervals, cpu, nanoseconds: false };
    let buffer = Buffer::default();
    let publisher = Printer::to(style, Box::new(buffer.clone()));
    let figures =
        LatencyFigures { count: 2, ave: 118_400.0, std: 21_540.0, min: 96_700, max: 139_999 };
    publisher.latency_header(100);
    let row = LatencyRow { length: 100, latency_ns: 96_700, figures, cpu: 12.345 };
    publisher.latency_row(&row);
    publisher.latency_row(&LatencyRow { latency_ns: 1_234_567_000, ..row });
    publisher.latency_summary(&LatencySummary {
        length: 100,
        figures,
        percentiles: [85_000, 139_000, 139_000, 139_000, 139_999],
        p99_9: 139_500,
        cpu: 100.0,
        cpu_ns_per_sample: 41.0,
        samples_per_message: 81,
        serialization: None,
    });
    publisher.finish(None).unwrap();
    let subscriber = Printer::to(style, Box::new(buffer.clone()));
    subscriber.throughput_header(100);
    subscriber.throughput_row(&ThroughputRow {
        length: 100,
        samples: 3_067_713,
        received: 3_067_713,
        rate: 1_136_283.4,
        rate_ave: 1_136_283.4,
        mbps: 909.03,
        mbps_ave: 909.03,
        lost: 0,
        cpu: 5.0,
    });
    subscriber.throughput_summary(&ThroughputSummary {
        length: 100,
        samples: 5_692_924,
        received: 5_692_924,
        rate: 1_138_580.0,
        mbps: 910.86,
        lost: 2_259_406,
        duplicates: 0,
        cpu: 5.0,
        cpu_ns_per_sample: 39.0,
    });
    subscriber.finish(None).unwrap();
    let bytes = buffer.0.lock().unwrap().clone();
    String::from_utf8(bytes).unwrap()
}

#[test]
fn csv_is_that_of_the_original_byte_for_byte() {
    let csv = |headers, intervals, cpu| print(OutputFormat::Csv, headers, intervals, cpu);
    assert_eq!(csv(true, true, false), include_str!("../../tests/golden/tables.csv"));
    assert_eq!(csv(true, true, true), include_str!("../../tests/golden/tables-cpu.csv"));
    assert_eq!(csv(true, false, false), include_str!("../../tests/golden/summaries.csv"));
    assert_eq!(csv(false, true, false), include_str!("../../tests/golden/no-headers.csv"));
}

#[test]
fn the_share_of_lost_samples_is_that_of_all_that_were_sent() {
    let style = Style {
        format: OutputFormat::Csv,
        headers: false,
        intervals: true,
        cpu: false,
        nanoseconds: false,
    };
    let buffer = Buffer::default();
    let printer = Printer::to(style, Box::new(buffer.clone()));
    // A filter counts 5 of 50 samples.
    printer.throughput_row(&ThroughputRow {
        samples: 5,
        received: 50,
        lost: 50,
        ..ThroughputRow::default()
    });
    printer.throughput_summary(&ThroughputSummary {
        samples: 5,
        received: 50,
        lost: 50,
        ..ThroughputSummary::default()
    });
    let text = String::from_utf8(buffer.0.lock().unwrap().clone()).unwrap();
    assert!(text.lines().all(|line| line.ends_with(" 50.00")), "{text}");
    assert_eq!(text.lines().count(), 2);
}

#[test]
fn legacy_has_one_line_for_each_interval_and_summary() {
    let legacy = print(OutputFormat::Legacy, true, true, true);
    assert_eq!(legacy, include_str!("../../tests/golden/tables.legacy"));
}

#[test]
fn json_is_valid_whenever_it_ends() {
    let schema = include_str!("../../schema/perftest.schema.json");
    let schema = jsonschema::validator_for(&serde_json::from_str(schema).unwrap()).unwrap();
    let check = |text: &str| {
        let document: serde_json::Value = serde_json::from_str(text).unwrap_or_else(|error| {
            panic!("{error}: {text}");
        });
        let errors: Vec<_> = schema.iter_errors(&document).map(|error| error.to_string()).collect();
        assert!(errors.is_empty(), "{errors:?}: {text}");
        document
    };
    for cpu in [false, true] {
        let both = print(OutputFormat::Json, true, true, cpu);
        let split = both.rfind("{\"perftest\"").unwrap();
        let latency = check(&both[..split]);
        assert_eq!(latency["perftest"][0]["intervals"].as_array().unwrap().len(), 2);
        assert_eq!(latency["perftest"][0]["summary"]["latency_99.9999"], 139.999);
        assert_eq!(latency["perftest"][0]["summary"]["latency_99.9"], 139.5);
        let throughput = check(&both[split..]);
        assert_eq!(throughput["perftest"][0]["summary"]["lost"], 2_259_406);
    }
    let style = Style {
        format: OutputFormat::Json,
        headers: true,
        intervals: true,
        cpu: false,
        nanoseconds: false,
    };
    for step in 0..3 {
        let buffer = Buffer::default();
        let printer = Printer::to(style, Box::new(buffer.clone()));
        if step > 0 {
            printer.latency_header(28);
        }
        if step > 1 {
            printer.latency_row(&LatencyRow::default());
        }
        printer.finish(Some("the \"peer\" died")).unwrap();
        let text = String::from_utf8(buffer.0.lock().unwrap().clone()).unwrap();
        assert_eq!(check(&text)["error"], "the \"peer\" died");
    }
    let invalid = serde_json::json!({ "perftest": [{ "length": 100, "intervals": 5 }] });
    assert!(!schema.is_valid(&invalid));
}

#[test]
fn latencies_have_three_decimals_on_request_and_keep_the_columns() {
    let style = Style {
        format: OutputFormat::Csv,
        headers: false,
        intervals: true,
        cpu: false,
        nanoseconds: true,
    };
    let buffer = Buffer::default();
    let printer = Printer::to(style, Box::new(buffer.clone()));
    let figures = LatencyFigures { count: 2, ave: 6_400.4, std: 21.0, min: 5_007, max: 7_123 };
    printer.latency_row(&LatencyRow { length: 64, latency_ns: 6_700, figures, cpu: 0.0 });
    printer.latency_summary(&LatencySummary {
        length: 64,
        figures,
        percentiles: [6_001, 6_020, 6_300, 7_000, 7_123],
        p99_9: 6_400,
        ..LatencySummary::default()
    });
    let text = String::from_utf8(buffer.0.lock().unwrap().clone()).unwrap();
    let expected = "            64,        6.700,    6.400,    0.021,    5.007,    7.123\n                 \
                    64,    6.400,    0.021,    5.007,    7.123,    6.001,    6.020,    6.300,       \
                    7.000,         7.123\n";
    assert_eq!(text, expected);
}
