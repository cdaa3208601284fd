//! Who calls, and what they may.

use std::collections::HashMap;

use zbus::fdo::DBusProxy;
use zbus::message::{Flags, Header};
use zbus::names::{BusName, OwnedUniqueName};
use zbus::{Connection, Variant};

use crate::api::connections::overflow_uid;

use super::error::BusError;

/// Who calls.
pub(super) struct Caller {
    /// The user.
    pub(super) uid: u32,
    /// The connection: signals go there, and nowhere else.
    pub(super) name: OwnedUniqueName,
}

impl Caller {
    /// Asks the bus who sent a message.
    pub(super) async fn of(connection: &Connection, header: &Header<'_>) -> Result<Caller, BusError> {
        let unknown = || BusError::NotOwner("it can't be told who calls".into());
        let name: OwnedUniqueName = header.sender().ok_or_else(unknown)?.to_owned().into();
        let bus = DBusProxy::new(connection).await?;
        let uid = bus.get_connection_unix_user(BusName::from(name.as_ref())).await;
        let uid = uid.map_err(|_| unknown())?;
        if uid == overflow_uid() {
            return Err(unknown());
        }
        Ok(Caller { uid, name })
    }

    /// Whether the caller may do what touches everybody: root, who runs this service, or who polkit lets.
    pub(super) async fn manages_models(
        &self,
        connection: &Connection,
        header: &Header<'_>,
    ) -> Result<(), BusError> {
        if self.uid == 0 || self.uid == rustix::process::getuid().as_raw() {
            return Ok(());
        }
        let interactive = header.primary().flags().contains(Flags::ALLOW_INTERACTIVE_AUTH);
        let allowed = polkit(connection, &self.name, interactive).await;
        match allowed {
            Ok(true) => Ok(()),
            Ok(false) => {
                Err(BusError::NotAuthorized(format!("{MANAGE_MODELS} is needed: ask an administrator")))
            }
            Err(why) => {
                log::debug!("polkit doesn't answer: {why}");
                Err(BusError::NotAuthorized("polkit doesn't answer: only root may do this".into()))
            }
        }
    }
}

/// polkit's action.
const MANAGE_MODELS: &str = "org.kadence.Kadence1.manage-models";

async fn polkit(connection: &Connection, name: &OwnedUniqueName, interactive: bool) -> zbus::Result<bool> {
    let subject = ("system-bus-name", HashMap::from([("name", Variant::from(name.as_str()))]));
    let body = (subject, MANAGE_MODELS, HashMap::<&str, &str>::new(), u32::from(interactive), "");
    let reply = connection
        .call_method(
            Some("org.freedesktop.PolicyKit1"),
            "/org/freedesktop/PolicyKit1/Authority",
            Some("org.freedesktop.PolicyKit1.Authority"),
            "CheckAuthorization",
            &body,
        )
        .await?;
    let (allowed, _, _): (bool, bool, HashMap<String, String>) = reply.body().deserialize()?;
    Ok(allowed)
}
