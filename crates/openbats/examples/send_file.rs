//! Sends a file to another directory and verifies it.
//!
//!     cargo run --release -p openbats --example send_file

use openbats::file::{self, Receiver};
use openbats::{ClientOptions, Endpoint, Identity, ServerOptions, Trust, Wait};

pub(crate) fn main() -> anyhow::Result<()> {
    let scratch = std::env::temp_dir().join(format!("openbats-example-{}", std::process::id()));
    std::fs::create_dir_all(&scratch)?;
    let path = scratch.join("original.bin");
    std::fs::write(&path, vec![0x5a; 10_000_000])?;
    let incoming = scratch.join("incoming");
    std::fs::create_dir_all(&incoming)?;

    let identity = Identity::generate(&["localhost"])?;
    let options = ClientOptions::new(Trust::fingerprint(identity.fingerprint()));
    let server = Endpoint::builder()
        .bind("127.0.0.1:0".parse()?)
        .server(ServerOptions::new(identity))
        .start()?;
    let address = server.local_addr();
    let receiving = std::thread::spawn(move || -> anyhow::Result<_> {
        let connection = server.accept().wait()?;
        let received = Receiver::new(incoming).receive(&connection, |_, _, _| ()).wait()?;
        // The sender must receive the verdict before the connection is dropped.
        connection.finish().wait()?;
        Ok(received)
    });

    let client = Endpoint::builder().start()?;
    let connection = client.connect(address, "localhost", options).wait()?;
    let sent = file::send(&connection, &path, |_, _| ()).wait()?;
    let received = receiving.join().expect("the receiver does not panic")?;
    let received = received.expect("one file was sent");
    assert_eq!((sent.size, sent.hash), (received.size, received.hash));
    assert_eq!(std::fs::read(&received.path)?, std::fs::read(&path)?);
    println!("{} bytes arrived and were verified", sent.size);
    std::fs::remove_dir_all(scratch)?;
    Ok(())
}
