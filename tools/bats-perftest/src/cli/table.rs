//! The options of a test: names, values, roles and help texts.

use super::spelling::{Role, Spec};

use Role::{Both, Publisher, Subscriber};

/// An option that works.
const fn option(
    name: &'static str,
    value: Option<&'static str>,
    role: Role,
    help: &'static str,
) -> Spec {
    Spec { name, value, role, help, refusal: None, is_new: false }
}

/// An option that the original does not have.
const fn new(
    name: &'static str,
    value: Option<&'static str>,
    role: Role,
    help: &'static str,
) -> Spec {
    Spec { is_new: true, ..option(name, value, role, help) }
}

/// An option of the original that has no meaning here, with the reason.
const fn refused(name: &'static str, value: Option<&'static str>, reason: &'static str) -> Spec {
    Spec { name, value, role: Role::Both, help: "", refusal: Some(reason), is_new: false }
}

const QOS: &str = "OpenBATS has no QoS profiles; use -bestEffort, -transport and -sendQueueSize";
const DURABILITY: &str = "samples are not kept for late subscribers";
const ALWAYS_TLS: &str = "BTP, BRTP, BRCTP, TCP and QUIC always encrypt and authenticate every \
     packet with TLS 1.3 keys, and UDP cannot";
const ADDRESSES: &str = "the ports follow from -domain, and -peer and -nic set the addresses";
const TYPES: &str = "samples have one fixed type here; there is no type system to select from";
const COPIES: &str = "there is no shared memory between publisher and subscriber";
const PACING: &str = "every OpenBATS connection paces its packets; limit the rate with -pubRate";
const ACKS: &str = "acknowledgements follow the protocol of the transport";

/// All options, in alphabetical order without regard to case: an ambiguous prefix selects the
/// first.
pub(crate) const OPTIONS: &[Spec] = &[
    option("allowInterfaces", Some("NIC"), Both, "Same as -nic."),
    refused("asynchronous", None, "every send is asynchronous here: an I/O thread sends"),
    option(
        "batchSize",
        Some("BYTES"),
        Publisher,
        "Pack samples into messages of at most this size; 0: off. Default 8192, and off in latency \
         tests, with -pubRate or -rawTransport unless given, and if fewer than two samples fit.",
    ),
    option("bestEffort", None, Both, "Deliver without retransmission: transport btp."),
    new(
        "busyPoll",
        Some("US"),
        Both,
        "Look for packets for this time before each sleep of a receiver: lower latency for a busy \
         CPU. Not in the original. Default 0.",
    ),
    option(
        "cacheStats",
        None,
        Publisher,
        "Print the state of the send queue and of the connections on standard error.",
    ),
    option(
        "cft",
        Some("FIRST:LAST"),
        Subscriber,
        "Count only samples with keys in this range; one number for one key. Needs -keyed.",
    ),
    refused("checkConsistency", None, "the transports authenticate every packet"),
    refused("compressionId", Some("ID"), "payloads of a test are not worth compressing"),
    refused("compressionLevel", Some("LEVEL"), "payloads of a test are not worth compressing"),
    refused("compressionThreshold", Some("BYTES"), "payloads are not worth compressing"),
    option("cpu", None, Both, "Add a column with the CPU time of this process."),
    refused("crc", None, ALWAYS_TLS),
    refused("crcKind", Some("KIND"), ALWAYS_TLS),
    option("dataLen", Some("BYTES"), Both, "Size of a sample with its header of 28. Default 100."),
    option("domain", Some("ID"), Both, "Tests in different domains are apart. Default 1."),
    refused("durability", Some("KIND"), DURABILITY),
    refused("dynamicData", None, TYPES),
    refused("enable-header-extension", None, "there are no RTPS headers here"),
    refused("enableAutoThrottle", None, PACING),
    refused("enableTurboMode", None, "set the size of messages with -batchSize"),
    option("executionTime", Some("SECONDS"), Publisher, "End after this time, or -numIter."),
    new(
        "fingerprint",
        Some("HEX"),
        Publisher,
        "Accept only subscribers whose certificate has this SHA-256, which they print. Repeatable. Not \
         in the original.",
    ),
    refused("flatData", None, TYPES),
    refused("flowController", Some("NAME"), PACING),
    new(
        "goal",
        Some("GOAL"),
        Both,
        "What repairs serve: latency, balanced or throughput. Not in the original. Default balanced.",
    ),
    option("help", None, Both, "Print this help."),
    option(
        "initialBurstSize",
        Some("COUNT"),
        Publisher,
        "Number of initialization pings. Default: those that fill the send queue.",
    ),
    option(
        "instances",
        Some("COUNT"),
        Both,
        "Number of keys that samples cycle over, the same on both sides. Default 1.",
    ),
    option("keyed", None, Both, "Samples have keys; see -instances."),
    new(
        "knownHosts",
        Some("FILE"),
        Publisher,
        "File with the certificate fingerprints of known subscribers. New ones are recorded, changed \
         ones refused. Not in the original. Default ~/.local/state/openbats/known_hosts.",
    ),
    option(
        "latencyCount",
        Some("COUNT"),
        Publisher,
        "Request an echo every COUNT samples, or batches. Default 10000, in latency tests 1.",
    ),
    option("latencyFile", Some("FILE"), Publisher, "Write every latency to this file."),
    option("latencyTest", None, Publisher, "Wait for the echo of each ping. For publisher 0."),
    option(
        "loadDataFromFile",
        Some("FILE"),
        Publisher,
        "Fill the payloads from this file, from its start again after its end.",
    ),
    option(
        "lowResolutionClock",
        None,
        Publisher,
        "Report as average the half of the total time per sample. For -latencyCount 1.",
    ),
    option("multicast", None, Both, "Send samples to a multicast group. For -rawTransport."),
    option("multicastAddr", Some("ADDRESS"), Both, "As -multicast, with this IPv4 group."),
    new(
        "nanosecondResolution",
        None,
        Publisher,
        "Print latencies in csv with three decimals, as the original does if it is built for that.",
    ),
    refused("networkCapture", None, "capture with tcpdump"),
    option("nic", Some("NIC"), Both, "Use only this interface, by name or address."),
    option(
        "noBlockingSockets",
        None,
        Both,
        "Raw transport: a publisher drops samples rather than wait. Without effect for a subscriber.",
    ),
    refused("noDirectCommunication", None, DURABILITY),
    new(
        "noKnownHosts",
        None,
        Publisher,
        "Accept any subscriber: for test beds, which reuse addresses. Not in the original.",
    ),
    option("noOutputHeaders", None, Both, "Print tables without titles and headers."),
    refused("noPositiveAcks", None, ACKS),
    option("noPrintIntervals", None, Both, "Print only the summary."),
    refused("noXmlQos", None, QOS),
    option("numIter", Some("COUNT"), Publisher, "Number of samples to send."),
    option("numPublishers", Some("COUNT"), Subscriber, "Publishers to wait for. Default 1."),
    option("numSubscribers", Some("COUNT"), Publisher, "Subscribers to wait for. Default 1."),
    option(
        "outputFile",
        Some("FILE"),
        Both,
        "Append the tables to this file. A JSON document needs a new or empty file.",
    ),
    option("outputFormat", Some("FORMAT"), Both, "csv (default), json or legacy."),
    option(
        "peer",
        Some("ADDRESS[:ID]"),
        Both,
        "Address of a peer, with its subscriber or publisher id. Repeatable. A raw subscriber answers the \
         publishers that address it, whatever this says.",
    ),
    option("pidMultiPubTest", Some("ID"), Publisher, "Id of this publisher. Default 0."),
    option("pub", None, Publisher, "Publish. The default is to subscribe."),
    option(
        "pubRate",
        Some("RATE[:METHOD]"),
        Publisher,
        "Samples per second, paced by spin (default) or sleep. Latency counts from the due time.",
    ),
    option("pubRatebps", Some("RATE[:METHOD]"), Publisher, "As -pubRate, in bits per second."),
    refused("qosFile", Some("FILE"), QOS),
    refused("qosLibrary", Some("NAME"), QOS),
    option("rawTransport", None, Both, "Plain UDP sockets. Needs -peer or -multicast."),
    refused("scan", Some("SIZES"), "it left the original, too: run `bats_perftest sweep`"),
    refused("secureCertAuthority", Some("FILE"), ALWAYS_TLS),
    refused("secureCertFile", Some("FILE"), ALWAYS_TLS),
    refused("secureDebug", Some("LEVEL"), ALWAYS_TLS),
    refused("secureEnableAAD", None, ALWAYS_TLS),
    refused("secureEncryptBoth", None, ALWAYS_TLS),
    refused("secureEncryptData", None, ALWAYS_TLS),
    refused("secureEncryptDiscovery", None, ALWAYS_TLS),
    refused("secureEncryptSM", None, ALWAYS_TLS),
    refused("secureGovernanceFile", Some("FILE"), ALWAYS_TLS),
    refused("secureLibrary", Some("NAME"), ALWAYS_TLS),
    refused("securePermissionsFile", Some("FILE"), ALWAYS_TLS),
    refused("securePrivateKey", Some("FILE"), ALWAYS_TLS),
    refused("securePSK", Some("KEY"), ALWAYS_TLS),
    refused("secureSign", None, ALWAYS_TLS),
    option(
        "sendQueueSize",
        Some("COUNT"),
        Publisher,
        "Samples, or batches, that a subscriber has not taken before a write waits. Default 50; -1: \
         no limit. Without effect for best effort, and not for -rawTransport.",
    ),
    option("showSerializationTime", None, Publisher, "Add the time to build and parse a sample."),
    option("sidMultiSubTest", Some("ID"), Subscriber, "Id of this subscriber. Default 0."),
    option("sleep", Some("MILLISECONDS"), Publisher, "Pause between sends. Default 0."),
    option("sub", None, Subscriber, "Subscribe. The default."),
    option("threadCPUAffinity", Some("CPUS"), Both, "Run on these CPUs, such as 0 or 2,3."),
    refused("threadPriorities", Some("X:Y:Z"), "start the program with chrt instead"),
    option(
        "transport",
        Some("KIND"),
        Both,
        "brtp (default), btp, brctp, transparent, tcp or quic. UDPv4 is brtp, UDPv6 brtp over IPv6, \
         TLS tcp.",
    ),
    refused("transportCertAuthority", Some("FILE"), ALWAYS_TLS),
    refused("transportCertFile", Some("FILE"), ALWAYS_TLS),
    refused("transportPrivateKey", Some("FILE"), ALWAYS_TLS),
    refused("transportPublicAddress", Some("ADDRESS"), ADDRESSES),
    refused("transportSecureWan", None, ALWAYS_TLS),
    refused("transportServerBindPort", Some("PORT"), ADDRESSES),
    refused("transportVerbosity", Some("LEVEL"), "use -verbosity"),
    refused("transportWan", None, ADDRESSES),
    refused("transportWanId", Some("ID"), ADDRESSES),
    refused("transportWanServerAddress", Some("ADDRESS"), ADDRESSES),
    refused("transportWanServerPort", Some("PORT"), ADDRESSES),
    refused("unbounded", Some("BYTES"), TYPES),
    refused("useMonitoring", None, "see -cacheStats"),
    option(
        "useReadThread",
        None,
        Both,
        "Receive in groups: see -waitsetDelayUsec. For subscribers.",
    ),
    option("verbosity", Some("LEVEL"), Both, "0 silent, 1 errors (default), 2 warnings, 3 all."),
    new("version", None, Both, "Print the version."),
    option("waitsetDelayUsec", Some("US"), Both, "Longest wait for a group. Default 100."),
    option("waitsetEventCount", Some("COUNT"), Both, "Messages of a group. Default 5."),
    option("writeInstance", Some("KEY"), Publisher, "Send only this key. Needs -keyed."),
    option("writerStats", None, Publisher, "Same as -cacheStats."),
    refused("zeroCopy", None, COPIES),
];
