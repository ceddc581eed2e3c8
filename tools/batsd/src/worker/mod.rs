//! The unprivileged process: links, sessions, the tunnel and the control socket.

mod changes;
mod clients;
mod control;
mod drain;
mod echo;
mod events;
pub(crate) mod first_use;
#[doc(hidden)]
pub mod fuzzing;
mod incoming;
mod kernel;
mod link_sessions;
mod names;
mod recorded;
mod reloads;
mod sandbox;
mod services;
mod speedtest;
mod trace;
mod tunnel;

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use bats_node::{Change, Control, NodeId, Owners, Plan};
use bats_tun::Tun;
use bats_types::Timestamp;
use openbats::node::{Event, LinkId, LinkState, LinkStatus, Node, Session};
use openbats::{Fingerprint, Identity, Mode, PresharedKey, TransportConfig};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use crate::channel::{self, Setup, ToKeeper, ToWorker};
use crate::config::{Config, Listener, TunMode};
use crate::ending;
use names::Names;
use sandbox::Sandbox;
use tunnel::{Lane, Port, lock};

/// Interval at which the state is compared with the plan even without an event: events are dropped
/// if there are too many.
const CHECK: Duration = Duration::from_secs(1);
/// Time for the peers to receive the close.
const CLOSING: Duration = Duration::from_millis(500);

/// The lanes of a peer, and the tasks that send from them.
struct Lanes {
    stream: Arc<Lane>,
    datagram: Arc<Lane>,
    fingerprint: [u8; 32],
    tasks: Vec<AbortHandle>,
}

impl Lanes {
    fn of(&self, is_stream: bool) -> &Lane {
        if is_stream { &self.stream } else { &self.datagram }
    }
}

impl Drop for Lanes {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
        for lane in [&self.stream, &self.datagram] {
            if let Some(session) = lock(&lane.session).take() {
                session.close(0, "no longer configured");
            }
        }
    }
}

/// The data for forwarding packets; replaced as a whole.
struct Table {
    owners: Owners,
    mode: TunMode,
    lanes: BTreeMap<NodeId, Arc<Lanes>>,
    /// Whether neighbours exchange packets with link-local addresses, and the peers that have a link.
    has_link_local: bool,
    neighbours: BTreeSet<NodeId>,
}

struct Worker {
    node: Node,
    /// Whether it forwards packets of neighbours.
    relays: bool,
    port: Option<Arc<Port>>,
    table: RwLock<Arc<Table>>,
    /// The wanted state: that of the configuration, and changes since.
    plan: Mutex<Plan>,
    /// That of the configuration.
    configured: Mutex<Plan>,
    links: Mutex<Control>,
    kernel: kernel::Kernel,
    names: Arc<Names>,
    recorded: recorded::Recorded,
    /// Sessions that peers have opened, by peer and mode: a new one replaces the old one.
    inbound: Mutex<BTreeMap<(NodeId, bool), (Session, AbortHandle)>>,
    link_sessions: Mutex<link_sessions::LinkSessions>,
    started: Instant,
    sandbox: Sandbox,
    reloads: reloads::Reloads,
    events: events::EventLog,
    echoes: echo::Echoes,
    speedtests: speedtest::Speedtests,
    /// Where the tasks of channels read into, one at a time.
    read_buffer: Mutex<Vec<u8>>,
    traces: trace::Traces,
    services: services::Services,
    listeners: Mutex<Vec<(Listener, AbortHandle)>>,
}

/// Runs the worker with the channel to the keeper as standard input.
///
/// # Errors
/// It was not started by a keeper, or the configuration cannot be applied.
pub fn run() -> anyhow::Result<()> {
    // The worker ends with the keeper, even if the keeper is killed.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    let keeper = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
    let received = channel::receive::<ToWorker>(&keeper);
    let Ok(Some((ToWorker::Setup, descriptors))) = received else {
        bail!("`batsd worker` is started by batsd itself: run `batsd --config FILE`");
    };
    let mut descriptors = descriptors.into_iter();
    let mut next = || descriptors.next().context("the keeper sent too few descriptors");
    let setup = Setup::from_file(next()?)?;
    let control = UnixListener::from(next()?);
    // What may be done needs the configuration; the keeper has checked it.
    let config = Config::parse_with(&setup.path, &setup.text, &setup.known)?;
    let tun = config.tun.as_ref().map(|_| next()).transpose()?.map(Tun::from_fd);
    raise_descriptor_limit();
    let sandbox = sandbox::enter(config.has_names())?;
    // A thread for each resolution of a name: one without an answer keeps its thread until the resolver gives up.
    let threads = names::RESOLUTIONS + services::resolutions::MAX_THREADS;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(threads)
        .build()?;
    let ended =
        runtime.block_on(serve(keeper.into(), setup, config, descriptors, control, tun, sandbox));
    // A resolver without an answer must not hold up the end.
    runtime.shutdown_background();
    ended
}

/// Connections of programs need more than the 1,024 descriptors of a usual soft limit.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // With fewer descriptors, connections wait in the backlog.
    let _ = setrlimit(Resource::Nofile, limit);
}

async fn serve(
    keeper: Arc<OwnedFd>,
    setup: Setup,
    config: Config,
    sockets: impl Iterator<Item = OwnedFd>,
    control: UnixListener,
    tun: Option<Tun>,
    sandbox: Sandbox,
) -> anyhow::Result<()> {
    let node = ending::retry(|| start_node(&config, &setup))?;
    let port = tun.map(|tun| Arc::new(Port::new(tun)));
    let table = Table {
        owners: Owners::default(),
        mode: TunMode::Auto,
        lanes: BTreeMap::new(),
        has_link_local: false,
        neighbours: BTreeSet::new(),
    };
    let worker = Arc::new(Worker {
        relays: config.relay,
        port,
        table: RwLock::new(Arc::new(table)),
        plan: Mutex::new(Plan::new(config.plan.id, [0; 32])),
        configured: Mutex::new(Plan::new(config.plan.id, [0; 32])),
        links: Mutex::default(),
        kernel: kernel::Kernel::default(),
        names: Arc::new(Names::new(config.has_names(), &config.listen)),
        recorded: recorded::Recorded::default(),
        inbound: Mutex::default(),
        link_sessions: Mutex::default(),
        started: Instant::now(),
        sandbox,
        reloads: reloads::Reloads::new(Arc::clone(&keeper)),
        events: events::EventLog::default(),
        echoes: echo::Echoes::default(),
        speedtests: speedtest::Speedtests::default(),
        read_buffer: Mutex::new(vec![0; tunnel::READ_BUFFER]),
        traces: trace::Traces::default(),
        services: services::Services::default(),
        listeners: Mutex::default(),
        node,
    });
    worker.apply(&config, None, sockets)?;
    if let Some(port) = worker.port.clone() {
        let reader = Arc::clone(&worker);
        std::thread::Builder::new()
            .name("tun".into())
            .spawn(move || tunnel::read_packets(&reader, &port))?;
    }
    tokio::spawn(accept(Arc::clone(&worker)));
    tokio::spawn(control::serve(Arc::clone(&worker), control)?);
    let (sender, mut messages) = mpsc::channel(4);
    let socket = Arc::clone(&keeper);
    std::thread::Builder::new().name("keeper".into()).spawn(move || {
        while let Ok(Some(message)) = channel::receive::<ToWorker>(&*socket) {
            if sender.blocking_send(message).is_err() {
                return;
            }
        }
    })?;
    channel::send(std::os::fd::AsFd::as_fd(&*keeper), &ToKeeper::Ready, &[])?;
    let events = worker.node.events();
    // Events that reconcile nothing must not put it off.
    let mut check = tokio::time::interval(CHECK);
    check.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            message = messages.recv() => match message {
                // The keeper ends.
                None => break,
                Some((ToWorker::Refused(reason), _)) => worker.end_reload(Err(reason)),
                Some((ToWorker::Setup, descriptors)) => {
                    let result = worker.reload(descriptors, false);
                    worker.end_reload(result.map_err(|error| format!("{error:#}")));
                }
                Some((ToWorker::FirstUse, descriptors)) => {
                    if let Err(error) = worker.reload(descriptors, true) {
                        eprintln!("batsd: a neighbour is known, but cannot be used: {error:#}");
                    }
                }
            },
            event = events.next() => match event {
                Some(Event::LinkMessage { link, message, .. }) => {
                    worker.traces.take(&worker, link, &message);
                }
                Some(event) => {
                    worker.record(&event);
                    // Anyone can cause refusals at the rate of handshakes.
                    if !events::is_refusal(&event) {
                        worker.follow();
                    }
                }
                None => bail!("the I/O thread has ended"),
            },
            () = worker.kernel.changed.notified() => worker.follow(),
            () = worker.names.answered.notified() => worker.follow(),
            _ = check.tick() => {
                worker.events.report_refusal(Instant::now());
                worker.follow();
            }
        }
    }
    let _ = tokio::time::timeout(CLOSING, worker.node.terminate(0, "the node ends")).await;
    Ok(())
}

fn start_node(config: &Config, setup: &Setup) -> anyhow::Result<Node> {
    let identity = Identity::from_pem("identity", setup.identity.as_bytes())?;
    let mut builder = Node::builder(library_id(config.plan.id), identity)
        .relaying(config.relay)
        .link_messages(true)
        .link_channels(tunnel::MAX_CHANNELS as u32, tunnel::RECEIVE_BUDGET);
    // The default is for large hosts. Unread data of all peers must not take the host's memory.
    let memory = rustix::system::sysinfo();
    let total = memory.totalram as u64 * u64::from(memory.mem_unit);
    builder = builder.memory_budget(total / 2);
    builder = builder.transport(transport(config.exit.is_some()));
    for &address in &config.listen {
        builder = builder.listen(address);
    }
    if let Some(key) = &setup.preshared_key {
        builder = builder.preshared_key(parse_key(key)?);
    }
    builder.start().with_context(|| {
        let addresses: Vec<String> = config.listen.iter().map(ToString::to_string).collect();
        format!("cannot listen at {} (key `listen` in [node])", addresses.join(", "))
    })
}

/// What a session may take. Packets of the tunnel, echoes and speed tests need channels; an exit serves others in
/// addition.
fn transport(is_exit: bool) -> TransportConfig {
    let of_programs = if is_exit { services::MAX_CHANNELS } else { 0 };
    TransportConfig {
        channels: Some(tunnel::MAX_CHANNELS as u32 + of_programs),
        receive_budget: tunnel::RECEIVE_BUDGET,
        ..TransportConfig::default()
    }
}

#[deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]
fn parse_key(text: &str) -> anyhow::Result<PresharedKey> {
    text.trim().parse().map_err(|error| anyhow::anyhow!("pre-shared key: {error}"))
}

fn library_id(id: NodeId) -> openbats::node::NodeId {
    openbats::node::NodeId(id.0.to_bits())
}

async fn accept(worker: Arc<Worker>) {
    while let Ok(session) = worker.node.accept().await {
        let peer = NodeId(session.remote_node().0.into());
        if !worker.table().lanes.contains_key(&peer) {
            session.close(1, "not configured here");
            continue;
        }
        let is_stream = match session.mode() {
            Mode::Brtp => true,
            Mode::Btp => false,
            _ => {
                session.close(1, "nodes have sessions of the modes BRTP and BTP");
                continue;
            }
        };
        let receives = tunnel::receive_messages(worker.clone(), peer, session.clone());
        let serves = incoming::serve(worker.clone(), peer, session.clone());
        let task = tokio::spawn(async move {
            tokio::join!(receives, serves);
        });
        let entry = (session, task.abort_handle());
        if let Some((old, task)) = lock(&worker.inbound).insert((peer, is_stream), entry) {
            task.abort();
            old.close(0, "replaced by a new session");
        }
    }
}

impl Worker {
    fn table(&self) -> Arc<Table> {
        Arc::clone(&self.table.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// `keeps_changes`: whether changes since the last configuration stay.
    fn reload(
        self: &Arc<Self>,
        descriptors: Vec<OwnedFd>,
        keeps_changes: bool,
    ) -> anyhow::Result<()> {
        let mut descriptors = descriptors.into_iter();
        let file = descriptors.next().context("the keeper sent no configuration")?;
        let setup = Setup::from_file(file)?;
        let config = Config::parse_with(&setup.path, &setup.text, &setup.known)?;
        let present = keeps_changes.then(|| lock(&self.plan).clone());
        self.apply(&config, present, descriptors)
    }

    /// Applies the configuration to links, peers, routes, the tunnel and the services. `sockets`
    /// are those of its listeners. What is new in it is added to the `present` plan, if there is one.
    fn apply(
        self: &Arc<Self>,
        config: &Config,
        present: Option<Plan>,
        sockets: impl Iterator<Item = OwnedFd>,
    ) -> anyhow::Result<()> {
        let mut plan = match present {
            Some(mut present) => {
                present.add_new(&lock(&self.configured), &config.plan);
                present
            }
            None => config.plan.clone(),
        };
        plan.fingerprint = self.node.fingerprint().map_or([0; 32], |print| print.0);
        let owners = plan.check()?;
        if let (Some(port), Some(tun)) = (&self.port, &config.tun) {
            port.configure(tun).context("the TUN device takes no packets")?;
        }
        self.recorded.set(config);
        self.kernel.follow(config.follows_kernel).context("cannot follow the kernel's routes")?;
        *lock(&self.plan) = plan.clone();
        *lock(&self.configured) = config.plan.clone();
        self.reconcile();
        let old = self.table();
        let mut lanes = BTreeMap::new();
        for (&id, peer) in &plan.peers {
            let known = old.lanes.get(&id).filter(|lanes| lanes.fingerprint == peer.fingerprint);
            let open = || self.open_lanes(id, peer.fingerprint);
            lanes.insert(id, known.cloned().unwrap_or_else(open));
        }
        let mode = config.tun.as_ref().map_or(TunMode::Auto, |tun| tun.mode);
        let has_link_local = config.tun.as_ref().is_some_and(|tun| tun.link_local);
        let neighbours = BTreeSet::new();
        let table = Table { owners, mode, lanes, has_link_local, neighbours };
        *self.table.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(table);
        self.find_neighbours(&plan);
        link_sessions::update(self);
        *self.speedtests.allowed.write().unwrap_or_else(PoisonError::into_inner) =
            Arc::new(config.speedtest.clone());
        *self.services.allow.write().unwrap_or_else(PoisonError::into_inner) =
            Arc::new(config.exit.clone().unwrap_or_default());
        self.listen(config, sockets)
    }

    /// Changes links or routes until the next reload, or until this process ends.
    fn change(self: &Arc<Self>, change: &Change) -> Result<(), String> {
        if matches!(change, Change::AddHost(..)) && !self.names.can_resolve {
            return Err("no `remote` of the file has a host name, so this process may not resolve names: add \
                        the link to the file and restart batsd, or give an address"
                .to_owned());
        }
        if let Change::AddLink(_, link, _) = change
            && link.interface.is_some()
            && !self.names.reach_over_interface(link)
        {
            return Err(format!(
                "a link to {} over an interface needs a `listen` at [::] for IPv6, or one for IPv4",
                link.remote
            ));
        }
        {
            let mut plan = lock(&self.plan);
            *plan = plan.with(change).map_err(|error| error.to_string())?;
        }
        self.follow();
        Ok(())
    }

    fn end_reload(&self, result: Result<(), String>) {
        self.events.record(events::reloaded(&result));
        self.reloads.done(result);
    }

    fn record(&self, event: &Event) {
        // Links that neighbours opened have no name.
        let name = |link: LinkId| {
            let links = lock(&self.links);
            let named = links.name(link.as_u64()).map(str::to_owned);
            let address = || {
                let all = self.node.links().list();
                all.iter().find(|one| one.id == link).map(|one| one.remote.to_string())
            };
            named.or_else(address)
        };
        if let Event::LinkDown { link, reason, .. } = event
            && let Some(name) = name(*link)
        {
            self.recorded.report(&name, reason);
        }
        let is_refusal = events::is_refusal(event);
        match events::describe(event, name) {
            Some(event) if is_refusal => self.events.record_refusal(event, Instant::now()),
            Some(event) => self.events.record(event),
            None => {}
        }
    }

    /// Whether this node forwards packets of the neighbour on a link.
    fn has_transit(&self, link: LinkId) -> bool {
        let status = self.node.links().status(link);
        let print = status.and_then(|link| link.fingerprint).map(|print| print.0);
        let policies = &lock(&self.plan).neighbours;
        self.relays
            && print.is_some_and(|print| policies.get(&print).is_some_and(|policy| policy.transit))
    }

    /// Ends listeners that are no longer configured, and starts new ones.
    fn listen(
        self: &Arc<Self>,
        config: &Config,
        sockets: impl Iterator<Item = OwnedFd>,
    ) -> anyhow::Result<()> {
        // The keeper may have answered a request to reload before it got the one to drain.
        if self.services.is_draining() {
            return Ok(());
        }
        let mut listeners = lock(&self.listeners);
        listeners.retain(|(listener, task)| {
            let is_kept = config.listeners.contains(listener);
            if !is_kept {
                task.abort();
            }
            is_kept
        });
        for (listener, socket) in config.listeners.iter().zip(sockets) {
            if !listeners.iter().any(|(known, _)| known == listener) {
                let task = services::listener::start(self, listener.clone(), socket)?;
                listeners.push((listener.clone(), task));
            }
        }
        Ok(())
    }

    fn open_lanes(self: &Arc<Self>, id: NodeId, fingerprint: [u8; 32]) -> Arc<Lanes> {
        let stream = Arc::new(Lane::new(Mode::Brtp));
        let datagram = Arc::new(Lane::new(Mode::Btp));
        let tasks = [&stream, &datagram].map(|lane| {
            let worker = Arc::clone(self);
            let sends = tunnel::send_packets(worker, lane.clone(), id, Fingerprint(fingerprint));
            tokio::spawn(sends).abort_handle()
        });
        Arc::new(Lanes { stream, datagram, fingerprint, tasks: tasks.into() })
    }

    /// Updates which peers are neighbours: those with an established link, whichever end opened it.
    fn find_neighbours(&self, plan: &Plan) {
        let established =
            |link: &LinkStatus| matches!(link.state, LinkState::Up | LinkState::Silent);
        let links = self.node.links().list();
        let prints: BTreeSet<[u8; 32]> = links
            .iter()
            .filter(|link| established(link))
            .filter_map(|link| Some(link.fingerprint?.0))
            .collect();
        let old = self.table();
        let is_neighbour =
            |peer: &bats_node::Peer| old.has_link_local && prints.contains(&peer.fingerprint);
        let peers = plan.peers.iter().filter(|(_, peer)| is_neighbour(peer));
        let neighbours: BTreeSet<NodeId> = peers.map(|(id, _)| *id).collect();
        if neighbours != old.neighbours {
            let (owners, lanes) = (old.owners.clone(), old.lanes.clone());
            let (mode, has_link_local) = (old.mode, old.has_link_local);
            let table = Table { owners, mode, lanes, has_link_local, neighbours };
            *self.table.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(table);
        }
    }

    /// Follows a change of links, routes or names.
    fn follow(self: &Arc<Self>) {
        self.reconcile();
        link_sessions::update(self);
    }

    /// Carries out the actions of the node core.
    fn reconcile(&self) {
        let wanted = lock(&self.plan).clone();
        self.find_neighbours(&wanted);
        let mut control = lock(&self.links);
        let mut network = &self.node;
        control.observe(&network);
        self.names.update(
            &wanted,
            |name, host| control.address_of(name, host),
            |name| control.host_status(name, &network),
        );
        let plan = wanted.with_addresses(|name| self.names.address(name));
        let fib = self.kernel.fib(&plan, control.state());
        let now = Timestamp::ZERO + self.started.elapsed();
        let done = control.reconcile(now, &plan, fib, &mut network);
        drop(control);
        for node in done.dismissed {
            for is_stream in [false, true] {
                if let Some((session, task)) = lock(&self.inbound).remove(&(node, is_stream)) {
                    task.abort();
                    session.close(1, "no longer configured");
                }
            }
        }
        for (to, via) in done.kernel_routes {
            self.events.record(events::kernel_route(to, via));
        }
        // It is tried again at the next event, or after a second.
        done.errors.iter().for_each(|error| eprintln!("batsd: {error}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_get_channels_for_programs_at_an_exit_only_and_memory_for_the_tunnel() {
        let limits = |is_exit| {
            let transport = transport(is_exit);
            (transport.channels, transport.receive_budget)
        };
        assert_eq!(limits(false), (Some(64), 384 << 20));
        assert_eq!(limits(true), (Some(64 + 2_048), 384 << 20));
    }
}
