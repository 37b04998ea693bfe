//! A network between a server and its Postgres that a test can cut.

use std::{io, net::SocketAddr};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
    task::JoinHandle,
};

/// Passes on what is sent to it. While it is cut, it swallows nothing and delivers nothing: connections stay open and
/// silent at both ends, as when a cable is pulled.
#[derive(Debug)]
pub struct Link {
    address: SocketAddr,
    whole: watch::Sender<bool>,
    accepting: JoinHandle<()>,
}

impl Link {
    /// One to whoever listens at `target`.
    ///
    /// # Panics
    /// When no port is free.
    pub async fn to(target: SocketAddr) -> Self {
        let listener = match TcpListener::bind("127.0.0.1:0").await {
            Ok(listener) => listener,
            Err(error) => panic!("no link: {error}"),
        };
        let address = match listener.local_addr() {
            Ok(address) => address,
            Err(error) => panic!("no link: {error}"),
        };
        let whole = watch::Sender::new(true);
        let accepting = tokio::spawn(accept(listener, target, whole.subscribe()));
        Self { address, whole, accepting }
    }

    /// Where to connect instead of the target.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Pulls the cable.
    pub fn cut(&self) {
        self.whole.send_replace(false);
    }

    /// Puts it in again.
    pub fn mend(&self) {
        self.whole.send_replace(true);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, target: SocketAddr, whole: watch::Receiver<bool>) {
    while let Ok((near, _)) = listener.accept().await {
        let mut whole = whole.clone();
        tokio::spawn(async move {
            whole.wait_for(|whole| *whole).await.map_err(io::Error::other)?;
            let far = TcpStream::connect(target).await?;
            // it would hold back small answers
            near.set_nodelay(true)?;
            far.set_nodelay(true)?;
            let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
            // either end closing ends both
            tokio::select! {
                done = pass(near_in, far_out, whole.clone()) => done,
                done = pass(far_in, near_out, whole) => done,
            }
        });
    }
}

async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut whole: watch::Receiver<bool>) -> io::Result<()> {
    let mut bytes = vec![0; 64 << 10];
    loop {
        let read = from.read(&mut bytes).await?;
        whole.wait_for(|whole| *whole).await.map_err(io::Error::other)?;
        if read == 0 {
            return Ok(());
        }
        to.write_all(&bytes[..read]).await?;
    }
}
