//! Clients on shared memory that misuse every descriptor they get, and clients of both Unix sockets that pass descriptors
//! which block. Meanwhile others are served, the watchdog is fed, and the service ends when told to. The last tests check
//! which users may connect at all.

use std::fs::Permissions;
use std::io::{IoSlice, IoSliceMut, Write as _};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use client::{Builder, blocking};
use conformance::{Ability, able};
use memmap2::MmapRaw;
use proto::v1::GetRequest;
use proto::v1::kv_client::KvClient;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::net::sockopt::{set_socket_linger, set_socket_recv_buffer_size};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use rustix::process::{Gid, Uid, getuid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use shm_layout::{Hello, Request, Segment, VERSION, Waits, op};
use tempfile::TempDir;
use workload::Pairs;

use crate::support::{Service, Signal, client_runtime, columns, free_address, load, stream, uds_channel, wait_for};
use crate::systemd::Systemd;

const PAIRS: u64 = 5000;

/// Time limit that only a hang reaches.
const LONG: Duration = Duration::from_secs(100);

struct Setup {
    temp: TempDir,
    systemd: Systemd,
    service: Service,
    seed: u64,
}

impl Setup {
    fn start(more: &[&str]) -> Self {
        let (temp, options) = (tempfile::tempdir().unwrap(), columns().remove(0));
        let (stream, workload) = stream(&format!("--pairs {PAIRS} --events 1000"));
        load(&temp.path().join("store"), &options, &workload);
        stream.stop().unwrap();
        let (notify, shm) = (temp.path().join("notify"), temp.path().join("shm.sock"));
        let systemd = Systemd::bind(&notify);
        let (listen, metrics) = (free_address("127.0.0.1"), free_address("127.0.0.1"));
        // Nothing listens at the stream's address, and lookups work anyway.
        let dir = temp.path().join("store");
        let service = Service::start_at(&dir, &options, "http://127.0.0.1:1", listen, metrics, |command| {
            command.env("NOTIFY_SOCKET", &notify).env("WATCHDOG_USEC", "2000000").arg("--shm").arg(&shm);
            command.arg("--uds").arg(temp.path().join("kv.sock")).args(more)
        });
        systemd.until("READY=1");
        Self { temp, systemd, service, seed: workload.seed }
    }

    fn socket(&self) -> PathBuf {
        self.temp.path().join("shm.sock")
    }

    fn client(&self) -> Builder {
        Builder::new(&format!("shm://{}", self.socket().display())).unwrap().deadline(LONG)
    }

    fn is_served(&self, client: &mut blocking::Client) {
        let pairs = Pairs::new(self.seed);
        for index in 0..200 {
            assert_eq!(client.get(&pairs.key(index)).unwrap().value, Some(pairs.value(index, 0)));
        }
        let keys: Vec<_> = (0..PAIRS).map(|index| pairs.key(index)).collect();
        let found = client.get_many(&keys).unwrap().value;
        assert!(found.into_iter().eq((0..PAIRS).map(|index| Some(pairs.value(index, 0)))));
    }
}

/// A session of a client that breaks the rules.
struct Rude {
    segment: Segment,
    memory: MmapRaw,
    socket: UnixStream,
    bell: OwnedFd,
    /// Descriptors of the memory and of the feed's ring.
    others: Vec<OwnedFd>,
    seq: u64,
}

impl Rude {
    fn connect(path: &Path) -> Option<Self> {
        let socket = UnixStream::connect(path).ok()?;
        let mut bytes = [0u8; size_of::<Hello>()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        recvmsg(&socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::empty()).ok()?;
        let fds: Vec<OwnedFd> = control
            .drain()
            .flat_map(|message| match message {
                RecvAncillaryMessage::ScmRights(fds) => fds.collect(),
                _ => Vec::new(),
            })
            .collect();
        let mut fds = fds.into_iter();
        let (memfd, bell) = (fds.next()?, fds.next()?);
        let memory = MmapRaw::map_raw(&std::fs::File::from(memfd.try_clone().unwrap())).unwrap();
        // SAFETY: a shared mapping of the whole segment, kept alive with the view.
        let segment = unsafe { Segment::new(NonNull::new(memory.as_mut_ptr()).unwrap()) };
        Some(Self { segment, memory, socket, bell, others: [memfd].into_iter().chain(fds).collect(), seq: 0 })
    }

    /// Makes the shared descriptors blocking, for all processes that use them.
    fn make_all_block(&self) {
        for fd in self.others.iter().map(OwnedFd::as_fd).chain([self.bell.as_fd(), self.socket.as_fd()]) {
            fcntl_setfl(fd, fcntl_getfl(fd).unwrap() - OFlags::NONBLOCK).unwrap();
        }
    }

    fn ask(&mut self, waits: Waits) {
        self.seq += 1;
        let request = Request { version: VERSION, op: op::GET, count: 1, ..Request::default() };
        self.segment.wait(self.seq, waits);
        // The bell is rung only once, because it is full.
        self.segment.send(self.seq, request, &[[1; 32]]);
    }

    /// Sends requests again and again and waits in this way, without reading the answers.
    fn asks_and_never_listens(mut self, waits: Waits, stop: &AtomicBool) {
        // One below the maximum of an eventfd's counter. The next write fills it, and a further one blocks.
        rustix::io::write(&self.bell, &(u64::MAX - 2).to_ne_bytes()).unwrap();
        rustix::io::write(&self.bell, &1u64.to_ne_bytes()).unwrap();
        self.make_all_block();
        // ORDERING: Relaxed, here and below: a flag.
        while !stop.load(Ordering::Relaxed) {
            self.ask(waits);
            while !self.segment.answered(self.seq) && !stop.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
        }
    }

    /// Rings without end, and overwrites the lines of both sides.
    fn rings_and_scribbles(self, stop: &AtomicBool) {
        let mut byte = 0u8;
        while !stop.load(Ordering::Relaxed) {
            rustix::io::write(&self.bell, &1u64.to_ne_bytes()).unwrap();
            for at in 0..128 {
                byte = byte.wrapping_mul(31).wrapping_add(7);
                // SAFETY: within the mapping; the service reads this memory only as atomics and by copying.
                unsafe { self.memory.as_mut_ptr().add(at).write_volatile(byte) };
            }
        }
    }
}

/// Sends a byte, and with it a TCP socket: closing its last copy blocks for as long as it lingers. Returns the other end of
/// the TCP connection, which must stay open and unread; `None` if nobody took the byte.
fn pass_lingering(socket: &UnixStream, linger: Duration, flags: SendFlags) -> Option<TcpStream> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    set_socket_recv_buffer_size(&listener, 4096).unwrap();
    let mut lingers = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (unread, _) = listener.accept().unwrap();
    set_socket_linger(&lingers, Some(linger)).unwrap();
    // Until the other end takes nothing more.
    lingers.set_write_timeout(Some(Duration::from_millis(100))).unwrap();
    while lingers.write(&[0; 1 << 16]).is_ok() {}
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [lingers.as_fd()];
    assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    sendmsg(socket, &[IoSlice::new(b"x")], &mut control, flags | SendFlags::NOSIGNAL).is_ok().then_some(unread)
}

/// Connects and disconnects, keeps the received descriptors, and sends descriptors that block whoever closes them.
fn comes_and_goes(path: &Path, stop: &AtomicBool) {
    let (mut kept, mut unread) = (Vec::new(), Vec::new());
    for n in 0.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        match n % 50 {
            0 => {
                let Ok(socket) = UnixStream::connect(path) else { continue };
                // The socket may be closed already. Longer than a stop may take; if the service has closed its copy
                // before this thread closes its own, this thread waits.
                unread.extend(pass_lingering(&socket, Duration::from_secs(10), SendFlags::empty()));
            }
            1 => {
                let Some(rude) = Rude::connect(path) else { continue };
                (&rude.socket).write_all(b"x").unwrap_err();
                kept.push(rude.bell);
            }
            _ => drop(Rude::connect(path)),
        }
        for bell in &kept {
            rustix::io::write(bell, &1u64.to_ne_bytes()).unwrap();
        }
    }
}

#[test]
fn no_client_stops_the_service_or_another_client() {
    let setup = Setup::start(&[]);
    let (path, stop) = (setup.socket(), Arc::new(AtomicBool::new(false)));
    let mut client = wait_for("a session", || setup.client().connect_blocking().ok());
    let session = || wait_for("a session", || Rude::connect(&path));
    let run = |abuse: Box<dyn FnOnce(&AtomicBool) + Send>| {
        let stop = Arc::clone(&stop);
        std::thread::spawn(move || abuse(&stop))
    };
    let (socket, futex, ringing, coming) = (session(), session(), session(), path.clone());
    let abusers: Vec<JoinHandle<()>> = vec![
        run(Box::new(move |stop| socket.asks_and_never_listens(Waits::Socket, stop))),
        run(Box::new(move |stop| futex.asks_and_never_listens(Waits::Futex, stop))),
        run(Box::new(move |stop| ringing.rings_and_scribbles(stop))),
        run(Box::new(move |stop| comes_and_goes(&coming, stop))),
    ];
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let pairs = Pairs::new(setup.seed);
    for _ in 0..5 {
        setup.is_served(&mut client);
        // A task waits in another way than a thread does. A new client must still get its session.
        runtime.block_on(async {
            let builder = setup.client().spin(Duration::ZERO);
            let newcomer = loop {
                match builder.clone().connect().await {
                    Ok(newcomer) => break newcomer,
                    Err(error) => assert_eq!(error.kind(), client::ErrorKind::RetryLater, "{error}"),
                }
            };
            for index in 0..50 {
                assert_eq!(newcomer.get(&pairs.key(index)).await.unwrap().value, Some(pairs.value(index, 0)));
            }
        });
        setup.systemd.until("WATCHDOG=1");
    }
    // The abuse continues while the service stops.
    let Setup { service, temp, .. } = setup;
    let log = temp.path().join("store.log");
    let ended = service.terminate();
    let log = std::fs::read_to_string(log).unwrap();
    assert!(ended.success() && !log.contains("did not end"), "{ended:?}\n{log}");
    // ORDERING: Relaxed: a flag.
    stop.store(true, Ordering::Relaxed);
    abusers.into_iter().for_each(|abuser| abuser.join().unwrap());
}

/// Each of these clients would stop one of the two network threads for an hour, and with both of them everything.
#[test]
fn no_descriptor_that_blocks_stops_the_clients_of_the_unix_socket() {
    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let setup = Setup::start(&[]);
    let path = setup.temp.path().join("kv.sock");
    let (runtime, pairs) = (client_runtime(), Pairs::new(setup.seed));
    let mut victim = KvClient::new(runtime.block_on(uds_channel(&path)).unwrap());
    let mut is_served = || {
        for index in 0..20 {
            let request = GetRequest { key: pairs.key(index).to_vec().into(), ..Default::default() };
            let answer = runtime.block_on(async { tokio::time::timeout(LONG, victim.get(request)).await });
            let value = answer.expect("not served").unwrap().into_inner().value;
            assert_eq!(value.as_deref(), Some(&pairs.value(index, 0)[..]));
        }
    };
    let (mut unread, mut open) = (Vec::new(), Vec::new());
    let mut attack = |before: &[u8], flags| {
        // So that the service closes the last copies.
        setup.service.freeze();
        for stays in [true, false, true] {
            let mut socket = UnixStream::connect(&path).unwrap();
            socket.write_all(before).unwrap();
            unread.push(pass_lingering(&socket, Duration::from_secs(3600), flags).unwrap());
            socket.write_all(b"more").unwrap();
            open.extend(stays.then_some(socket));
        }
    };
    for flags in [SendFlags::empty(), SendFlags::OOB] {
        for before in [&b""[..], &PREFACE[..9], PREFACE] {
            attack(before, flags);
            setup.service.signal(Signal::CONT);
            is_served();
            setup.systemd.until("WATCHDOG=1");
        }
    }
    // Clients that connect while nobody accepts, and the end.
    attack(b"", SendFlags::empty());
    setup.service.signal(Signal::TERM);
    setup.service.signal(Signal::CONT);
    assert!(setup.service.terminate().success());
}

/// Runs `does` as another user, who is a member of this group.
fn as_other<T: Send>(group: u32, does: impl FnOnce() -> T + Send) -> T {
    let other = || {
        let gid = Gid::from_raw(group);
        set_thread_groups(&[]).unwrap();
        set_thread_res_gid(gid, gid, gid).unwrap();
        let nobody = Uid::from_raw(65_534);
        set_thread_res_uid(nobody, nobody, nobody).unwrap();
        does()
    };
    // Only this thread changes its user, because these are the bare system calls.
    std::thread::scope(|scope| scope.spawn(other).join().unwrap())
}

#[test]
fn the_group_is_let_in_and_nobody_else() {
    let root = getuid().is_root().then_some(()).ok_or("only root can be another user");
    let Some(()) = able(Ability::Root, root) else { return };
    const GROUP: u32 = 4242;
    let group = GROUP.to_string();
    let setup = Setup::start(&["--shm-group", &group]);
    std::fs::set_permissions(setup.temp.path(), Permissions::from_mode(0o755)).unwrap();
    let file = std::fs::metadata(setup.socket()).unwrap();
    assert_eq!((file.gid(), file.permissions().mode() & 0o777), (GROUP, 0o660));
    // The admin socket is made after the socket for shared memory.
    let admin = wait_for("the admin socket", || std::fs::metadata(setup.temp.path().join("store/admin.sock")).ok());
    assert_eq!((admin.gid(), admin.permissions().mode() & 0o777), (0, 0o600), "the admin socket is its owner's alone");
    as_other(GROUP, || {
        let mut client = setup.client().connect_blocking().unwrap();
        setup.is_served(&mut client);
    });
    let refused = as_other(GROUP + 1, || setup.client().connect_blocking().err().unwrap());
    assert!(refused.to_string().contains("Permission denied"), "{refused}");
    assert!(setup.service.terminate().success());
}

#[test]
fn a_group_that_does_not_exist_is_found_before_the_store_is_touched() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("store");
    for setting in ["--shm-group", "--uds-group"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_service"));
        command.arg("--dir").arg(&dir).args(["--extract", "token-mint", "--geyser", "http://127.0.0.1:1"]);
        command.args([setting, "no-such-group"]);
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        let key = setting.trim_start_matches("--").replace('-', "_");
        assert!(said.contains(&format!("{key}=no-such-group")) && said.contains("groupadd"), "{said}");
        assert!(!dir.exists());
    }
}
