//! The transports next to raw UDP of the same sweep.

use super::results::{Latency, Results};

const RAW: &str = "raw";

/// For each transport and size, as CSV: samples per second, median and 99th percentile of the latency,
/// the same as multiples of those of raw UDP, and the lost samples. Empty without raw UDP or others.
pub(super) fn table(all: &Results) -> String {
    let (Some(raw_throughput), Some(raw_latency)) = (all.throughput.get(RAW), all.latency.get(RAW))
    else {
        return String::new();
    };
    let mut table = String::new();
    for (transport, sizes) in all.throughput.iter().filter(|(transport, _)| *transport != RAW) {
        for (size, throughput) in sizes {
            let rate = raw_throughput.get(size).map(|raw| throughput.rate / raw.rate.max(1.0));
            let latency = all.latency.get(transport).and_then(|sizes| sizes.get(size));
            let latency = latency.zip(raw_latency.get(size));
            let median = latency.map(|(own, raw)| own.median() / raw.median().max(1e-3));
            let p99 = latency.map(|(own, raw)| own.p99() / raw.p99().max(1e-3));
            let cell = |ratio: Option<f64>| match ratio {
                Some(ratio) => format!("{ratio:.2}"),
                None => "-".to_owned(),
            };
            let own = latency.map(|(own, _)| own);
            table += &format!(
                "{transport:>9},{size:>20},{:>10.0},{:>9},{:>9},{:>18},{:>11},{:>11},{:>13}\n",
                throughput.rate,
                cell(own.map(Latency::median)),
                cell(own.map(Latency::p99)),
                cell(rate),
                cell(median),
                cell(p99),
                throughput.lost
            );
        }
    }
    match table.is_empty() {
        true => table,
        false => format!(
            "Transport, Sample Size (Bytes), Samples/s, 50% (μs), 99% (μs), Samples/s to raw, \
             50% to raw, 99% to raw, Lost Samples\n\
             {table}"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::results::Throughput;
    use super::*;

    #[test]
    fn ratios_are_to_raw_udp_of_the_same_size() {
        let throughput =
            |rate, lost| Throughput { samples: rate, rate, mbps: rate, lost, lost_percent: 0.0 };
        let latency = |median, p99| Latency([0.0, 0.0, 0.0, 0.0, median, 0.0, p99, 0.0, 0.0]);
        let mut all = Results::default();
        all.throughput.insert(RAW.into(), [(64, throughput(100.0, 9.0))].into());
        all.latency.insert(RAW.into(), [(64, latency(10.0, 20.0))].into());
        assert_eq!(table(&all), "");
        let sizes = [(64, throughput(250.0, 3.0)), (128, throughput(1.0, 0.0))];
        all.throughput.insert("brtp".into(), sizes.into());
        all.latency.insert("brtp".into(), [(64, latency(12.0, 30.0))].into());
        let table = table(&all);
        let cells = |line: &str| -> Vec<String> {
            line.split(',').map(|cell| cell.trim().to_owned()).collect()
        };
        let lines: Vec<_> = table.lines().map(cells).collect();
        assert_eq!(lines[1], ["brtp", "64", "250", "12.00", "30.00", "2.50", "1.20", "1.50", "3"]);
        assert_eq!(lines[2], ["brtp", "128", "1", "-", "-", "-", "-", "-", "0"]);
    }
}
