//! The bearer token: sent with every call, read again after a refusal, and refusals reported by their kind.

use std::path::Path;
use std::sync::{Arc, Mutex};

use proto::v1::kv_server::{Kv, KvServer};
use proto::v1::{
    ChangesRequest, ChangesResponse, CountOfRequest, CountOfResponse, GetAtRequest, GetAtResponse, GetManyRequest,
    GetManyResponse, GetRequest, GetResponse, KeysOfRequest, KeysOfResponse, PastChange, StatusRequest, StatusResponse,
};
use solkv_client::{Builder, ErrorKind, ReadOptions};
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status};

/// A server that answers only calls with the right token.
#[derive(Clone)]
struct Guarded {
    token: Arc<Mutex<&'static str>>,
}

impl Guarded {
    fn check<T>(&self, request: &Request<T>) -> Result<(), Status> {
        let expected = format!("Bearer {}", self.token.lock().unwrap());
        let right =
            request.metadata().get("authorization").is_some_and(|value| value.as_bytes() == expected.as_bytes());
        if right { Ok(()) } else { Err(Status::unauthenticated("not the token")) }
    }

    fn serve(&self, path: &Path) {
        let listener = UnixListenerStream::new(UnixListener::bind(path).unwrap());
        let server = tonic::transport::Server::builder().add_service(KvServer::new(self.clone()));
        tokio::spawn(async move { server.serve_with_incoming(listener).await.unwrap() });
    }
}

#[tonic::async_trait]
impl Kv for Guarded {
    type KeysOfStream = tokio_stream::Empty<Result<KeysOfResponse, Status>>;

    async fn keys_of(&self, request: Request<KeysOfRequest>) -> Result<Response<Self::KeysOfStream>, Status> {
        self.check(&request)?;
        Err(Status::out_of_range("another cursor"))
    }

    async fn count_of(&self, request: Request<CountOfRequest>) -> Result<Response<CountOfResponse>, Status> {
        self.check(&request)?;
        Ok(Response::new(CountOfResponse { count: 7, has_more: true, slot: Some(1) }))
    }

    async fn get_at(&self, request: Request<GetAtRequest>) -> Result<Response<GetAtResponse>, Status> {
        self.check(&request)?;
        let until_slot = Some(request.get_ref().slot + 1);
        Ok(Response::new(GetAtResponse { value: None, until_slot, slot: Some(9) }))
    }

    async fn changes(&self, request: Request<ChangesRequest>) -> Result<Response<ChangesResponse>, Status> {
        self.check(&request)?;
        let change = PastChange { slot: 5, before: None, after: Some(vec![1; 31].into()) };
        Ok(Response::new(ChangesResponse { changes: vec![change], ..Default::default() }))
    }

    async fn get(&self, request: Request<GetRequest>) -> Result<Response<GetResponse>, Status> {
        self.check(&request)?;
        Ok(Response::new(GetResponse { value: None, slot: Some(3) }))
    }

    async fn get_many(&self, request: Request<GetManyRequest>) -> Result<Response<GetManyResponse>, Status> {
        self.check(&request)?;
        Err(Status::resource_exhausted("too many"))
    }

    async fn status(&self, request: Request<StatusRequest>) -> Result<Response<StatusResponse>, Status> {
        self.check(&request)?;
        Err(Status::data_loss("damaged"))
    }
}

#[tokio::test]
async fn the_token_goes_with_every_call_and_follows_its_file() {
    let dir = tempfile::tempdir().unwrap();
    let (path, file) = (dir.path().join("kv.sock"), dir.path().join("token"));
    let guarded = Guarded { token: Arc::new(Mutex::new("first")) };
    guarded.serve(&path);
    std::fs::write(&file, "first\n").unwrap();
    let address = format!("unix://{}", path.display());
    let stranger = Builder::new(&address).unwrap().connect().await.unwrap();
    assert_eq!(stranger.get(&[1; 32]).await.unwrap_err().kind(), ErrorKind::Refused);
    let client = Builder::new(&address).unwrap().token_file(&file).connect().await.unwrap();
    assert_eq!(client.get(&[1; 32]).await.unwrap().slot, Some(3));
    assert_eq!(client.get_many(&[[1; 32]]).await.unwrap_err().kind(), ErrorKind::RetryLater);
    assert_eq!(client.status().await.unwrap_err().kind(), ErrorKind::Failed);
    let keys = client.keys_of(&[1; 32], None, 0, ReadOptions::default()).await;
    assert_eq!(keys.unwrap_err().kind(), ErrorKind::BadInput);
    let counted = client.count_of(&[1; 32], 7, ReadOptions::default()).await.unwrap();
    assert_eq!((counted.value, counted.slot), ((7, true), Some(1)));
    let past = client.get_at(&[1; 32], 8, ReadOptions::default()).await.unwrap();
    assert_eq!((past.value.value, past.value.until_slot, past.slot), (None, Some(9), Some(9)));
    // A value of 31 bytes is no value.
    let changes = client.changes(&[1; 32], None, 0, ReadOptions::default()).await;
    assert_eq!(changes.unwrap_err().kind(), ErrorKind::Failed);

    std::fs::write(&file, "second\n").unwrap();
    *guarded.token.lock().unwrap() = "second";
    assert_eq!(client.get(&[1; 32]).await.unwrap().slot, Some(3), "the file holds another token by now");
    *guarded.token.lock().unwrap() = "third";
    // A call must be usable in any task: its future must be `Send`.
    let own = client.clone();
    let many =
        tokio::spawn(async move { (own.get(&[1; 32]).await, own.get_many(&[[1; 32]]).await, own.status().await).1 });
    assert_eq!(many.await.unwrap().err().unwrap().kind(), ErrorKind::Refused);
    let refused = client.get(&[1; 32]).await.unwrap_err();
    assert_eq!((refused.kind(), refused.to_string().contains("second")), (ErrorKind::Refused, false), "{refused}");
}

#[tokio::test]
async fn no_service_is_told_at_once() {
    let dir = tempfile::tempdir().unwrap();
    for address in [format!("unix://{}/no.sock", dir.path().display()), "http://127.0.0.1:1".to_owned()] {
        let gone = solkv_client::Client::connect(&address).await.err().unwrap();
        assert_eq!(gone.kind(), ErrorKind::Unavailable, "{gone}");
        assert!(gone.to_string().contains("is the service running?"), "{gone}");
    }
}
