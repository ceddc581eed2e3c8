//! Schedule of the competing flows of a tool.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::plan::{Flow, Tool};

/// Start and duration of a flow, in seconds from the start of the tool.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Times {
    pub(crate) delay: f64,
    pub(crate) duration: f64,
}

/// Values of the file, or random values from the seed: a delay up to 10 s and a duration of 10 to
/// 20 s, limited to the end of the tool.
pub(crate) fn times(flows: &[Flow], tool: &Tool, seed: u64) -> Vec<Times> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let length = tool.seconds();
    flows
        .iter()
        .map(|flow| {
            let (delay, duration): (f64, f64) = (random.random(), random.random());
            let delay = flow.delay.unwrap_or(delay * length.min(10.0)).min((length - 1.0).max(0.0));
            let duration = flow.duration.unwrap_or(10.0 + 10.0 * duration);
            Times { delay, duration: duration.min(length - delay) }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Protocol, ProtocolKind, ToolKind};

    #[test]
    fn flows_end_with_the_tool_and_are_reproducible() {
        let kind = ToolKind::Ping { count: 1, size: 64 };
        let tool = Tool {
            name: "x".into(),
            client: 0,
            server: 1,
            interval: 1.0,
            intervals: 15,
            kind,
            under_load: false,
        };
        let protocol =
            Protocol { name: "udp".into(), label: "UDP".into(), kind: ProtocolKind::Udp };
        let drawn = Flow { protocol, client: 0, server: 1, delay: None, duration: None };
        let configured = Flow { delay: Some(3.0), duration: Some(4.0), ..drawn.clone() };
        let flows = [drawn, configured];
        for seed in 0..100 {
            let all = times(&flows, &tool, seed);
            assert_eq!(all, times(&flows, &tool, seed));
            assert!((0.0..=10.0).contains(&all[0].delay));
            assert!(all[0].duration > 0.0 && all[0].delay + all[0].duration <= 15.0);
            assert_eq!(all[1], Times { delay: 3.0, duration: 4.0 });
        }
    }
}
