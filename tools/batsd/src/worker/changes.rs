//! Changes of links and routes at run time, from the parameters of a call.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use bats_node::{Change, HostLink, Link, NodeId};
use openbats::Fingerprint;
use serde_json::Value;

use crate::config::{Remote, WANTED_REMOTE, is_link_name};

// The node core has no library of its own to ask.
const _: () = assert!(bats_node::MAX_HOPS == openbats::node::MAX_PATHS);

/// The change that a call asks for. `relays`: whether this node forwards packets of neighbours.
pub(super) fn parse(method: &str, parameters: &Value, relays: bool) -> Result<Change, String> {
    match method {
        "LinkAdd" => link(parameters, relays),
        "LinkDel" => Ok(Change::DeleteLink(required(parameters, "name")?.to_owned())),
        "RouteAdd" => Ok(Change::AddRoute(node(parameters)?, hops(parameters)?)),
        _ => {
            let links: BTreeSet<String> = hops(parameters)?.into_keys().collect();
            Ok(Change::DeleteRoute(node(parameters)?, links))
        }
    }
}

fn given<'a>(parameters: &'a Value, key: &str) -> Result<Option<&'a str>, String> {
    match &parameters[key] {
        Value::Null => Ok(None),
        Value::String(text) => Ok(Some(text)),
        _ => Err(format!("`{key}` must be a string")),
    }
}

fn required<'a>(parameters: &'a Value, key: &str) -> Result<&'a str, String> {
    given(parameters, key)?.ok_or(format!("`{key}` is missing"))
}

fn link(parameters: &Value, relays: bool) -> Result<Change, String> {
    let name = required(parameters, "name")?;
    if !is_link_name(name) {
        return Err(format!("'{name}' is no name of a link: use 1 to 32 letters, digits, - _ ."));
    }
    let remote = required(parameters, "remote")?;
    let remote: Remote =
        remote.parse().map_err(|()| format!("'{remote}' is not {WANTED_REMOTE}"))?;
    let local = given(parameters, "local")?
        .map(|local| local.parse().map_err(|_| format!("'{local}' is not an IP address")))
        .transpose()?;
    let interface = given(parameters, "interface")?.map(str::to_owned);
    if let Some(interface) = &interface {
        remote.check_interface(interface, local)?;
    }
    let print = required(parameters, "fingerprint")?;
    let digits = print.strip_prefix("sha256:").unwrap_or(print);
    let fingerprint: Fingerprint = digits.parse().map_err(|_| {
        format!("'{print}' is not 64 hexadecimal digits after sha256: (`batsctl share` prints it)")
    })?;
    let transit = parameters["transit"].as_bool().unwrap_or(false);
    if transit && !relays {
        return Err("transit needs relay = true in [node]".to_owned());
    }
    let (name, fingerprint) = (name.to_owned(), fingerprint.0);
    Ok(match remote {
        Remote::Address(remote) => {
            Change::AddLink(name, Link { remote, local, interface, fingerprint }, transit)
        }
        Remote::Host(host) => {
            Change::AddHost(name, HostLink { host, local, interface, fingerprint }, transit)
        }
    })
}

fn node(parameters: &Value) -> Result<NodeId, String> {
    let text = required(parameters, "to")?;
    let id: Ipv4Addr = text
        .parse()
        .map_err(|_| format!("'{text}' is not the ID of a node, written like an IPv4 address"))?;
    if id.is_unspecified() {
        return Err("0.0.0.0 is no node ID".to_owned());
    }
    if id.is_multicast() {
        return Err(format!("{id} is the ID of a group, and not that of a node"));
    }
    Ok(NodeId(id))
}

/// Links by name, with their tiers: "north" or "north:1".
fn hops(parameters: &Value) -> Result<BTreeMap<String, u8>, String> {
    let Value::Array(via) = &parameters["via"] else {
        return match &parameters["via"] {
            Value::Null => Ok(BTreeMap::new()),
            _ => Err("`via` must be an array of names of links".to_owned()),
        };
    };
    let hop = |value: &Value| {
        let text = value.as_str().ok_or("`via` must be an array of names of links")?;
        let (name, tier) = text.split_once(':').unwrap_or((text, "0"));
        let tier = tier.parse().map_err(|_| format!("'{tier}' is no tier: use 0 to 255"))?;
        Ok((name.to_owned(), tier))
    };
    via.iter().map(hop).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn parameters_of_changes_are_checked() {
        let print = "07".repeat(32);
        let link = json!({ "name": "n", "remote": "192.0.2.7:4900", "fingerprint": print });
        let with = |key: &str, value: Value| {
            let mut link = link.clone();
            link[key] = value;
            link
        };
        assert!(matches!(parse("LinkAdd", &link, false), Ok(Change::AddLink(..))));
        let bound = parse("LinkAdd", &with("interface", json!("eth1")), false);
        let name = Some("eth1".to_owned());
        assert!(matches!(bound, Ok(Change::AddLink(_, link, _)) if link.interface == name));
        let named = with("remote", json!("node.example.org:4900"));
        assert!(matches!(parse("LinkAdd", &named, false), Ok(Change::AddHost(..))));
        for (parameters, words) in [
            (with("name", json!("a b")), "no name of a link"),
            (with("name", json!(7)), "must be a string"),
            (with("remote", json!("192.0.2.7")), "with a port"),
            (with("local", json!("x")), "not an IP address"),
            (with("interface", json!("a/b")), "no name of an interface"),
            (with("interface", json!(7)), "must be a string"),
            (with("fingerprint", json!("07")), "64 hexadecimal digits"),
            (with("transit", json!(true)), "relay = true"),
            (json!({}), "`name` is missing"),
        ] {
            let error = parse("LinkAdd", &parameters, false).unwrap_err();
            assert!(error.contains(words), "{parameters}: {error}");
        }
        let route = |via: Value| json!({ "to": "10.255.0.9", "via": via });
        let hops = [("a".to_owned(), 0), ("b".to_owned(), 2)].into();
        let to = NodeId(Ipv4Addr::new(10, 255, 0, 9));
        let parsed = parse("RouteAdd", &route(json!(["a", "b:2"])), false);
        assert_eq!(parsed, Ok(Change::AddRoute(to, hops)));
        let parsed = parse("RouteDel", &json!({ "to": "10.255.0.9" }), false);
        assert_eq!(parsed, Ok(Change::DeleteRoute(to, BTreeSet::new())));
        for via in [json!(["a:x"]), json!([7]), json!("a")] {
            assert!(parse("RouteAdd", &route(via), false).is_err());
        }
    }
}
