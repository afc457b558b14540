//! The faults that a diagnosis can name. Each has a heading in docs/check.md.

use serde::{Serialize, Serializer};

macro_rules! faults {
    ($($name:ident $slug:literal,)*) => {
        /// A fault, or a limit, that has a cause and a cure.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Fault {
            $(#[doc = concat!("`", $slug, "`, which docs/check.md explains.")] $name,)*
        }

        impl Fault {
            /// All faults, in the order of docs/check.md.
            #[cfg(test)]
            pub(crate) const ALL: &[Self] = &[$(Self::$name,)*];

            /// Returns the name in JSON, which is the heading in docs/check.md.
            pub const fn slug(self) -> &'static str {
                match self {
                    $(Self::$name => $slug,)*
                }
            }
        }
    };
}

faults! {
    KernelWithoutClient "kernel-without-cifs-smb-direct",
    KernelWithoutServer "kernel-without-ksmbd-smb-direct",
    NoRdmaCore "no-rdma-core",
    NoRdmaCm "no-rdma-cm",
    NoAdapter "no-adapter",
    AdapterDown "adapter-down",
    AdapterWithoutAddress "adapter-without-address",
    AdapterWithFewElements "adapter-with-few-elements",
    AdapterUnusable "adapter-unusable",
    SiwNullPointer "siw-null-pointer",
    KsmbdStopped "ksmbd-stopped",
    KsmbdNotListening "ksmbd-not-listening",
    SambaAlone "samba-alone",
    MountOverTcp "mount-over-tcp",
    MountLost "mount-lost",
    NoInterfacesAsked "no-interfaces-asked",
    NameUnknown "name-unknown",
    NoRoute "no-route",
    HostSilent "host-silent",
    RouteWithoutAdapter "route-without-adapter",
    MtuDiffers "mtu-differs",
    PortRefused "port-refused",
    PortDropped "port-dropped",
    PortRejected "port-rejected",
    NotSmbDirect "not-smb-direct",
    WrongPort "wrong-port",
    MpaRefused "mpa-refused",
    ListenerGone "listener-gone",
    CmRefused "cm-refused",
    NegotiationSilent "negotiation-silent",
    NegotiationRefused "negotiation-refused",
    NegotiationBroken "negotiation-broken",
    NoSmb "no-smb",
    DialectBelow3 "dialect-below-3",
    LoginFailed "login-failed",
    ShareUnknown "share-unknown",
    MultichannelOff "multichannel-off",
    NotRdmaCapable "not-rdma-capable",
    NotAdvertised "not-advertised",
    Signing "signing",
    Encryption "encryption",
    Threshold "rdma-threshold",
    FragmentedSize "max-fragmented-size",
}

impl Serialize for Fault {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.slug())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fault_has_its_heading_in_the_documentation() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/check.md");
        let page = std::fs::read_to_string(path).expect("it is in the repository");
        let headings: Vec<&str> = page
            .lines()
            .filter_map(|line| line.strip_prefix("### "))
            .collect();
        let slugs: Vec<&str> = Fault::ALL.iter().map(|fault| fault.slug()).collect();
        assert_eq!(headings, slugs);
    }
}
