//! What Ctrl-C, or a polite kill, does.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use super::Failure;

/// A flag that Ctrl-C raises; a second one, while it is raised, ends the process at once.
pub fn cancel() -> Result<Arc<AtomicBool>, Failure> {
    let raised = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        flag::register_conditional_default(signal, raised.clone())?;
        flag::register(signal, raised.clone())?;
    }
    Ok(raised)
}

/// A flag: while it is raised, as it is now, Ctrl-C ends the process cleanly.
pub fn ends_while() -> Result<Arc<AtomicBool>, Failure> {
    let idle = Arc::new(AtomicBool::new(true));
    flag::register_conditional_shutdown(SIGINT, 0, idle.clone())?;
    Ok(idle)
}
