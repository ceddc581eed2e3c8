//! Numbers of clients of the control socket: users share the places of those that may only read, and none of
//! them can take a place from root or from another user that may change the node.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use super::tunnel::lock;

/// Clients of all users that may not change the node. Each has a descriptor, and up to 1 MiB of an answer that it
/// does not read.
const MAX_CLIENTS: usize = 64;
/// Clients of one of these users. More than monitoring and some terminals need, and a quarter of all.
const MAX_OF_USER: usize = 16;
/// Clients of a user that may change the node: it is trusted, and its defects must not use up the descriptors.
const MAX_OF_TRUSTED: usize = 64;

/// The connected clients, by their users.
#[derive(Default)]
pub(super) struct Clients {
    /// Users that may change the node have entries of their own, and do not count for the others.
    of_users: Mutex<BTreeMap<(bool, u32), usize>>,
}

/// The place of a client; free again when it is dropped.
pub(super) struct Place {
    clients: Arc<Clients>,
    key: (bool, u32),
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut of_users = lock(&self.clients.of_users);
        if let Some(count) = of_users.get_mut(&self.key) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                of_users.remove(&self.key);
            }
        }
    }
}

impl Clients {
    /// Takes a place for a client of this user.
    ///
    /// # Errors
    /// The reason why there is no place, for the client.
    pub(super) fn enter(self: &Arc<Self>, user: u32, may_change: bool) -> Result<Place, String> {
        let key = (may_change, user);
        let mut of_users = lock(&self.of_users);
        let limit = if may_change { MAX_OF_TRUSTED } else { MAX_OF_USER };
        if of_users.get(&key).is_some_and(|count| *count >= limit) {
            return Err(format!("{limit} clients of user {user} are connected: end some of them"));
        }
        let others = of_users.iter().filter(|((may_change, _), _)| !may_change);
        if !may_change && others.map(|(_, count)| count).sum::<usize>() >= MAX_CLIENTS {
            return Err(format!("{MAX_CLIENTS} clients of all users are connected: try again"));
        }
        let count = of_users.entry(key).or_default();
        *count = count.saturating_add(1);
        drop(of_users);
        Ok(Place { clients: Arc::clone(self), key })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_have_shares_and_those_that_may_change_the_node_wait_for_none() {
        let clients = Arc::new(Clients::default());
        let mut places = Vec::new();
        for user in 1..=4 {
            for _ in 0..MAX_OF_USER {
                places.push(clients.enter(user, false).ok().unwrap());
            }
            let error = clients.enter(user, false).err().unwrap();
            assert!(error.starts_with(&format!("16 clients of user {user} ")), "{error}");
        }
        assert!(clients.enter(5, false).err().unwrap().starts_with("64 clients of all users"));
        for _ in 0..MAX_OF_TRUSTED {
            places.push(clients.enter(0, true).ok().unwrap());
        }
        assert!(clients.enter(0, true).is_err());
        assert!(clients.enter(6, true).is_ok());
        // A place that is free again is anyone's.
        places.swap_remove(0);
        let place = clients.enter(5, false).ok().unwrap();
        assert!(clients.enter(1, false).is_err());
        drop((places, place));
        assert!(lock(&clients.of_users).is_empty());
    }
}
