//! The published figures of RTI Perftest 4.1.1 with Connext 7.3.0 on a link of 1 Gbit/s between two
//! Linux boards, from RTI's page "Performance Benchmarking".

use super::results::{Latency, Results, Throughput};

/// Names of the published series.
pub(super) const DDS: &str = "RTI Connext (published)";
pub(super) const UDP: &str = "RTI raw UDP (published)";

const THROUGHPUT_DDS: [(usize, Throughput); 9] = [
    (
        64,
        Throughput {
            samples: 50_934_273.0,
            rate: 1_697_636.0,
            mbps: 869.2,
            lost: 0.0,
            lost_percent: 0.0,
        },
    ),
    (
        256,
        Throughput {
            samples: 13_956_672.0,
            rate: 465_183.0,
            mbps: 952.7,
            lost: 0.0,
            lost_percent: 0.0,
        },
    ),
    (
        512,
        Throughput {
            samples: 7_083_793.0,
            rate: 236_107.0,
            mbps: 967.1,
            lost: 0.0,
            lost_percent: 0.0,
        },
    ),
    (
        1024,
        Throughput {
            samples: 3_568_913.0,
            rate: 118_952.0,
            mbps: 974.5,
            lost: 0.0,
            lost_percent: 0.0,
        },
    ),
    (
        4096,
        Throughput {
            samples: 897_349.0,
            rate: 29_908.0,
            mbps: 980.1,
            lost: 0.0,
            lost_percent: 0.0,
        },
    ),
    (
        8192,
        Throughput {
            samples: 450_701.0,
            rate: 15_021.0,
            mbps: 984.5,
            lost: 0.0,
            lost_percent: 0.0,
        },
    ),
    (
        16_384,
        Throughput { samples: 223_091.0, rate: 7_435.0, mbps: 974.5, lost: 0.0, lost_percent: 0.0 },
    ),
    (
        32_768,
        Throughput { samples: 111_745.0, rate: 3_723.0, mbps: 976.2, lost: 0.0, lost_percent: 0.0 },
    ),
    (
        63_000,
        Throughput { samples: 58_423.0, rate: 1_947.0, mbps: 981.3, lost: 0.0, lost_percent: 0.0 },
    ),
];

const THROUGHPUT_UDP: [(usize, Throughput); 9] = [
    (
        64,
        Throughput {
            samples: 25_725_201.0,
            rate: 857_495.0,
            mbps: 439.0,
            lost: 2_259_406.0,
            lost_percent: 8.07,
        },
    ),
    (
        256,
        Throughput {
            samples: 11_503_270.0,
            rate: 383_436.0,
            mbps: 785.3,
            lost: 0.0,
            lost_percent: 0.0,
        },
    ),
    (
        512,
        Throughput {
            samples: 6_443_533.0,
            rate: 214_778.0,
            mbps: 879.7,
            lost: 0.0,
            lost_percent: 0.0,
        },
    ),
    (
        1024,
        Throughput {
            samples: 3_427_909.0,
            rate: 114_260.0,
            mbps: 936.0,
            lost: 0.0,
            lost_percent: 0.0,
        },
    ),
    (
        4096,
        Throughput {
            samples: 900_160.0,
            rate: 30_004.0,
            mbps: 983.2,
            lost: 0.0,
            lost_percent: 0.0,
        },
    ),
    (
        8192,
        Throughput {
            samples: 434_991.0,
            rate: 14_499.0,
            mbps: 950.2,
            lost: 0.0,
            lost_percent: 0.0,
        },
    ),
    (
        16_384,
        Throughput { samples: 219_021.0, rate: 7_300.0, mbps: 956.9, lost: 0.0, lost_percent: 0.0 },
    ),
    (
        32_768,
        Throughput { samples: 113_602.0, rate: 3_786.0, mbps: 992.6, lost: 0.0, lost_percent: 0.0 },
    ),
    (
        63_000,
        Throughput { samples: 59_080.0, rate: 1_969.0, mbps: 992.5, lost: 0.0, lost_percent: 0.0 },
    ),
];

const LATENCY_DDS: [(usize, Latency); 9] = [
    (64, Latency([129.0, 6.8, 90.0, 193.0, 129.0, 139.0, 143.0, 160.0, 193.0])),
    (256, Latency([135.0, 10.1, 83.0, 180.0, 137.0, 145.0, 148.0, 170.0, 180.0])),
    (512, Latency([150.0, 6.3, 101.0, 202.0, 151.0, 154.0, 157.0, 183.0, 202.0])),
    (1024, Latency([160.0, 7.1, 125.0, 212.0, 163.0, 166.0, 171.0, 181.0, 212.0])),
    (4096, Latency([245.0, 3.4, 214.0, 288.0, 245.0, 247.0, 251.0, 265.0, 288.0])),
    (8192, Latency([351.0, 3.3, 316.0, 397.0, 351.0, 353.0, 356.0, 371.0, 397.0])),
    (16384, Latency([423.0, 8.7, 379.0, 477.0, 421.0, 434.0, 437.0, 451.0, 477.0])),
    (32768, Latency([522.0, 7.3, 489.0, 598.0, 522.0, 530.0, 539.0, 572.0, 598.0])),
    (63000, Latency([765.0, 5.9, 744.0, 898.0, 763.0, 771.0, 787.0, 859.0, 898.0])),
];

const LATENCY_UDP: [(usize, Latency); 9] = [
    (64, Latency([93.0, 20.2, 42.0, 157.0, 97.0, 112.0, 116.0, 120.0, 157.0])),
    (256, Latency([110.0, 8.6, 67.0, 176.0, 113.0, 119.0, 122.0, 127.0, 176.0])),
    (512, Latency([111.0, 3.8, 75.0, 182.0, 111.0, 114.0, 124.0, 134.0, 182.0])),
    (1024, Latency([142.0, 4.7, 109.0, 192.0, 143.0, 145.0, 147.0, 164.0, 192.0])),
    (4096, Latency([224.0, 4.6, 196.0, 266.0, 225.0, 227.0, 229.0, 262.0, 266.0])),
    (8192, Latency([330.0, 2.0, 306.0, 371.0, 330.0, 332.0, 335.0, 367.0, 371.0])),
    (16384, Latency([397.0, 4.2, 351.0, 449.0, 397.0, 400.0, 411.0, 423.0, 449.0])),
    (32768, Latency([516.0, 6.7, 486.0, 564.0, 515.0, 527.0, 533.0, 554.0, 564.0])),
    (63000, Latency([766.0, 5.1, 735.0, 854.0, 767.0, 769.0, 783.0, 792.0, 854.0])),
];

/// The published figures.
pub(super) fn results() -> Results {
    let mut results = Results::default();
    results.throughput.insert(DDS.into(), THROUGHPUT_DDS.into());
    results.throughput.insert(UDP.into(), THROUGHPUT_UDP.into());
    results.latency.insert(DDS.into(), LATENCY_DDS.into());
    results.latency.insert(UDP.into(), LATENCY_UDP.into());
    results
}
