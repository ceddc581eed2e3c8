//! Availability of backends and of third-party programs.

use crate::protocol::programs::{WIREGUARD_GO, WIREGUARD_GO_FROM, find};

/// The state of one backend or program.
pub(crate) struct Found {
    pub(crate) what: &'static str,
    pub(crate) found: String,
    pub(crate) good: bool,
}

/// Checks the backends. `rights` says whether namespaces are allowed, or why not.
pub(crate) fn backends(rights: &Result<(), String>) -> Vec<Found> {
    let netem = match rights {
        Ok(()) => super::netem::unavailable_reason(),
        Err(why) => Some(why.clone()),
    };
    let ssh = match find("ssh") {
        Some(_) => Ok("yes, for the hosts listed in `testbeds`".to_owned()),
        None => Err("`ssh` is not installed (Debian: openssh-client)".to_owned()),
    };
    let split = |result: Result<String, String>| match result {
        Ok(text) => (text, true),
        Err(text) => (text, false),
    };
    let list = [
        ("backend sim", Ok("yes, always".to_owned())),
        ("backend netns", rights.clone().map(|()| "yes".to_owned())),
        ("backend netem", netem.map_or_else(|| Ok("yes".to_owned()), Err)),
        ("backend ssh", ssh),
    ];
    list.into_iter()
        .map(|(what, result)| {
            let (found, good) = split(result);
            Found { what, found, good }
        })
        .collect()
}

/// Checks the third-party programs that tests may use.
pub(crate) fn programs() -> Vec<Found> {
    // Any of the names will do.
    let list: [(_, &[&str], _); 5] = [
        ("kcptun (protocol kcp)", &["kcptun-client"], "Debian: kcptun"),
        ("SRT (protocol srt)", &["srt-live-transmit"], "Debian: srt-tools"),
        ("wireguard-go (protocol wireguard-go)", &WIREGUARD_GO, WIREGUARD_GO_FROM),
        ("scp (tool scp)", &["sshd"], "Debian: openssh-server"),
        ("sshping (tool sshping)", &["sshping"], "build it from source"),
    ];
    list.into_iter()
        .map(|(what, names, from)| {
            let path = names.iter().find_map(|name| find(name));
            let found = match &path {
                Some(path) => path.display().to_string(),
                None => format!("no `{}` ({from})", names.join("` or `")),
            };
            Found { what, found, good: path.is_some() }
        })
        .collect()
}
