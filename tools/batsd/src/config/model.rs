//! The keys of the configuration file. Unknown keys are errors; values keep their place in the file,
//! so that later checks can name the line.

use std::collections::BTreeMap;

use serde::Deserialize;
use toml::Spanned;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    pub(super) node: Node,
    pub(super) tun: Option<Tun>,
    #[serde(default)]
    pub(super) link: Vec<Link>,
    #[serde(default)]
    pub(super) peer: Vec<Peer>,
    #[serde(default)]
    pub(super) routes: Routes,
    #[serde(default)]
    pub(super) proxy: Vec<Proxy>,
    #[serde(default)]
    pub(super) forward: Vec<Forward>,
    pub(super) exit: Option<Exit>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Proxy {
    pub(super) listen: Spanned<String>,
    pub(super) exit: Spanned<String>,
    #[serde(default)]
    pub(super) users: BTreeMap<String, String>,
    #[serde(default)]
    pub(super) open: bool,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Forward {
    pub(super) listen: Spanned<String>,
    pub(super) exit: Spanned<String>,
    pub(super) to: Spanned<String>,
    pub(super) protocol: Option<Spanned<String>>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Exit {
    #[serde(default)]
    pub(super) allow: Vec<Spanned<String>>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Node {
    pub(super) id: Spanned<String>,
    pub(super) identity: Option<String>,
    pub(super) preshared_key: Option<String>,
    pub(super) listen: Option<Vec<Spanned<String>>>,
    #[serde(default)]
    pub(super) relay: bool,
    pub(super) control: Option<String>,
    pub(super) known_hosts: Option<String>,
    pub(super) user: Option<Spanned<String>>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Tun {
    pub(super) name: Option<Spanned<String>>,
    pub(super) address: Vec<Spanned<String>>,
    pub(super) mtu: Option<Spanned<u32>>,
    pub(super) mode: Option<Spanned<String>>,
    pub(super) offload: Option<bool>,
    pub(super) link_local: Option<bool>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Link {
    pub(super) name: Spanned<String>,
    pub(super) remote: Option<Spanned<String>>,
    pub(super) local: Option<Spanned<String>>,
    pub(super) interface: Option<Spanned<String>>,
    pub(super) fingerprint: Option<Spanned<String>>,
    #[serde(default)]
    pub(super) tier: u8,
    #[serde(default)]
    pub(super) transit: bool,
    pub(super) rate: Option<Spanned<String>>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Peer {
    pub(super) id: Spanned<String>,
    pub(super) fingerprint: Option<Spanned<String>>,
    pub(super) remote: Option<Spanned<String>>,
    pub(super) interface: Option<Spanned<String>>,
    #[serde(default)]
    pub(super) prefixes: Vec<Spanned<String>>,
    #[serde(default)]
    pub(super) speedtest: bool,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Routes {
    pub(super) source: Option<Vec<Spanned<String>>>,
    #[serde(rename = "static", default)]
    pub(super) fixed: Vec<Spanned<Route>>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Route {
    pub(super) to: Spanned<String>,
    pub(super) via: Vec<Spanned<String>>,
    /// The neighbours of all these links have to be asked for their certificates.
    #[serde(skip)]
    pub(super) waits: bool,
}
