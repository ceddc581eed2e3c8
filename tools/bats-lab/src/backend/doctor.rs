//! Which backends work here, and why the others do not.

use crate::protocol::programs::find;

/// What was found of a backend or a program.
pub(crate) struct Found {
    pub(crate) what: &'static str,
    pub(crate) found: String,
    pub(crate) good: bool,
}

/// The backends. `rights` says whether namespaces are allowed, or why not.
pub(crate) fn backends(rights: &Result<(), String>) -> Vec<Found> {
    let netem = match rights {
        Ok(()) => super::netem::obstacle(),
        Err(why) => Some(why.clone()),
    };
    let ssh = match find("ssh") {
        Some(_) => Ok("yes, where hosts are named in `testbeds`".to_owned()),
        None => Err("`ssh` is not installed (Debian: openssh-client)".to_owned()),
    };
    let word = |result: Result<String, String>| match result {
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
            let (found, good) = word(result);
            Found { what, found, good }
        })
        .collect()
}

/// The programs of others that tests may use.
pub(crate) fn programs() -> Vec<Found> {
    let list = [
        ("kcptun (protocol kcp)", "kcptun-client", "Debian: kcptun"),
        ("SRT (protocol srt)", "srt-live-transmit", "Debian: srt-tools"),
        ("scp (tool scp)", "sshd", "Debian: openssh-server"),
        ("sshping (tool sshping)", "sshping", "to be built from its source"),
    ];
    list.into_iter()
        .map(|(what, program, from)| {
            let place = find(program);
            let found = match &place {
                Some(place) => place.display().to_string(),
                None => format!("no `{program}` ({from})"),
            };
            Found { what, found, good: place.is_some() }
        })
        .collect()
}
