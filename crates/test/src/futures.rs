//! Checks of all futures of a crate, from one list: a future that is dropped leaves no waker behind, and no waker
//! is woken or dropped under a lock, so it may own the last handle and call it.

use std::{
    collections::BTreeSet,
    fs,
    path::Path,
    pin::Pin,
    sync::{Arc, Mutex, Weak, mpsc},
    task::{Context, Wake, Waker},
    thread,
    time::Duration,
};

use tokio::{runtime::Builder, time::sleep};

/// A future whose output does not matter.
pub type Boxed = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The objects whose methods return the futures.
pub trait World: Sized + 'static {
    /// A handle that wakers own.
    type Handle: Clone + Send + 'static;
    /// The objects without the handles.
    type Rest;

    /// Returns a copy of each handle.
    fn handles(&self) -> Vec<Self::Handle>;
    /// Separates the handles from the rest.
    fn split(self) -> (Vec<Self::Handle>, Self::Rest);
    /// Ends the connections, which wakes all futures.
    fn abort(&self);
    /// Calls a method that takes the lock of a connection.
    fn call(handle: &Self::Handle);
}

/// A future of the crate.
pub struct Case<W> {
    /// The name of the function or type in the source.
    pub name: &'static str,
    /// The first poll is certain to be pending over TCP.
    pub waits: bool,
    /// Returns the future.
    pub make: fn(&W) -> Boxed,
}

/// Defines `CASES`: for each future its name, whether its first poll is pending over TCP, and how it is made.
#[macro_export]
macro_rules! future_cases {
    ($world_type:ty: $($name:literal $waits:literal |$world:ident| $make:expr;)*) => {
        const CASES: &[$crate::futures::Case<$world_type>] = &[$($crate::futures::Case {
            name: $name,
            waits: $waits,
            make: |$world| {
                let future = $make;
                Box::pin(async move { let _ = future.await; })
            },
        }),*];
    };
}

/// A waker that owns handles, and calls and drops them when it is woken or dropped.
struct Owner<W: World>(Mutex<Vec<W::Handle>>);

impl<W: World> Wake for Owner<W> {
    fn wake(self: Arc<Self>) {
        let handles = std::mem::take(&mut *self.0.lock().unwrap());
        for handle in handles {
            W::call(&handle);
        }
    }
}

impl<W: World> Drop for Owner<W> {
    fn drop(&mut self) {
        let mut handles = self.0.lock().unwrap();
        handles.drain(..).for_each(|handle| W::call(&handle));
    }
}

fn owner<W: World>(handles: Vec<W::Handle>) -> (Waker, Weak<Owner<W>>) {
    let owner = Arc::new(Owner::<W>(Mutex::new(handles)));
    let weak = Arc::downgrade(&owner);
    (Waker::from(owner), weak)
}

fn poll(future: &mut Boxed, waker: &Waker) -> bool {
    let mut context = Context::from_waker(waker);
    future.as_mut().poll(&mut context).is_pending()
}

/// Waits until nothing owns the waker.
async fn is_gone<W: World>(name: &str, owner: &Weak<Owner<W>>) {
    for _ in 0..10_000 {
        if owner.strong_count() == 0 {
            return;
        }
        sleep(Duration::from_millis(1)).await;
    }
    panic!("{name}: its waker was left behind");
}

/// Polls the future, polls it with another waker, and drops it.
async fn dropped<W: World>(case: &Case<W>, world: W, is_tcp: bool) {
    let name = case.name;
    let mut future = (case.make)(&world);
    let (first, first_owner) = owner::<W>(world.handles());
    let (second, second_owner) = owner::<W>(world.handles());
    let pending = poll(&mut future, &first);
    assert!(pending || !is_tcp || !case.waits, "{name} did not wait");
    drop(first);
    if !pending {
        return;
    }
    // From here on the wakers own the last handles, except those that the future itself has.
    let (kept, _rest) = world.split();
    if poll(&mut future, &second) {
        is_gone(name, &first_owner).await;
    }
    drop((second, kept));
    drop(future);
    is_gone(name, &first_owner).await;
    is_gone(name, &second_owner).await;
}

/// Polls the future with a waker that owns the last handles, and drops it.
async fn dropped_with_the_last_handle<W: World>(case: &Case<W>, world: W) {
    let mut future = (case.make)(&world);
    let (waker, owner) = owner::<W>(world.handles());
    poll(&mut future, &waker);
    drop((waker, world));
    drop(future);
    is_gone(case.name, &owner).await;
}

/// Polls the future, and ends the connections, which wakes it.
async fn woken<W: World>(case: &Case<W>, world: W) {
    let mut future = (case.make)(&world);
    let (waker, owner) = owner::<W>(world.handles());
    let pending = poll(&mut future, &waker);
    world.abort();
    drop((waker, world));
    if pending {
        let _ = tokio::time::timeout(Duration::from_millis(20), &mut future).await;
    }
    drop(future);
    is_gone(case.name, &owner).await;
}

/// Tries each case in worlds of its own.
///
/// # Panics
/// A waker is left behind, or runs under a lock.
pub fn check<W: World, Made>(
    cases: &'static [Case<W>],
    is_tcp: bool,
    world: impl Fn() -> Made + Copy + Send + 'static,
) where
    Made: Future<Output = W>,
{
    for (index, case) in cases.iter().enumerate() {
        let name = case.name;
        let (done, is_done) = mpsc::channel();
        let thread = thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                dropped(case, world().await, is_tcp).await;
                dropped_with_the_last_handle(case, world().await).await;
                woken(case, world().await).await;
            });
            done.send(()).unwrap();
        });
        match is_done.recv_timeout(Duration::from_secs(120)) {
            Err(mpsc::RecvTimeoutError::Timeout) => {
                panic!("{name} (number {index}): a lock is held while a waker runs")
            }
            _ => thread.join().unwrap(),
        }
    }
}

/// Returns the names of the public asynchronous functions and of the futures in the source below `folder`.
pub fn in_source(folder: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    visit(folder, &mut found);
    found
}

fn visit(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            visit(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let source = fs::read_to_string(&path).unwrap();
            for line in source.lines().map(str::trim) {
                let name = line
                    .strip_prefix("pub async fn ")
                    .or_else(|| Some(line.strip_prefix("impl")?.split_once(" Future for ")?.1));
                let end = |at: char| !at.is_alphanumeric() && at != '_';
                let name = name.and_then(|name| name.split(end).next());
                found.extend(name.map(String::from));
            }
        }
    }
}
