//! The address column of a host record: networks, and our own addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::config::error::Problem;
use crate::config::fields::Name;

/// One of our own addresses, and the mask of its network.
pub type Interface = (IpAddr, IpAddr);

/// Whose connections a record is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Address {
    /// Everybody's.
    All,
    /// Our own machine's.
    SameHost,
    /// Those of the networks that we are part of.
    SameNet,
    /// Those of a network.
    Net { network: IpAddr, mask: IpAddr },
    /// Those of a host by its name, which is not looked up: the record is skipped.
    HostName(String),
}

impl Address {
    /// Reads the column; true if the next one is the mask.
    pub fn parse(name: &Name) -> Result<(Self, bool), Problem> {
        for (keyword, address) in [
            ("all", Self::All),
            ("samehost", Self::SameHost),
            ("samenet", Self::SameNet),
        ] {
            if name.is(keyword) {
                return Ok((address, false));
            }
        }
        let text = &name.text;
        if let Some((network, length)) = text.split_once('/') {
            let network = network.parse().map_err(|_| {
                Problem::Rule(format!("\"{text}\" is no network: the address is wrong"))
            })?;
            let mask = prefix(network, length).ok_or_else(|| {
                Problem::Rule(format!(
                    "\"{text}\" is no network: the number behind the slash is wrong"
                ))
            })?;
            return Ok((Self::Net { network, mask }, false));
        }
        match text.parse() {
            Ok(network) => Ok((
                Self::Net {
                    network,
                    mask: network,
                },
                true,
            )),
            // What only digits and dots, or a colon, are in was meant to be an address.
            Err(_)
                if text.contains(':') || text.chars().all(|c| c == '.' || c.is_ascii_digit()) =>
            {
                Err(Problem::Rule(format!("\"{text}\" is no address")))
            }
            Err(_) => Ok((Self::HostName(text.clone()), false)),
        }
    }

    /// The same network with the mask of the next column.
    pub fn with_mask(self, name: &Name) -> Result<Self, Problem> {
        let text = &name.text;
        let wrong = |what: &str| Problem::Rule(format!("\"{text}\" is no mask{what}"));
        let mask: IpAddr = text.parse().map_err(|_| wrong(""))?;
        match self {
            Self::Net { network, .. } if network.is_ipv4() == mask.is_ipv4() => {
                Ok(Self::Net { network, mask })
            }
            Self::Net { .. } => Err(wrong(" of this kind of address")),
            other => Ok(other),
        }
    }

    /// Is a client with this address meant? `interfaces` is asked only where it matters.
    pub fn matches(&self, client: IpAddr, interfaces: &dyn Fn() -> Vec<Interface>) -> bool {
        // An IPv4 client of a socket for both comes with an address like ::ffff:10.0.0.1.
        let client = client.to_canonical();
        match self {
            Self::All => true,
            Self::SameHost => interfaces().iter().any(|(own, _)| *own == client),
            Self::SameNet => interfaces()
                .iter()
                .any(|&(own, mask)| is_within(client, own, mask)),
            Self::Net { network, mask } => is_within(client, *network, *mask),
            Self::HostName(_) => false,
        }
    }
}

/// The mask whose first `length` bits are set.
fn prefix(network: IpAddr, length: &str) -> Option<IpAddr> {
    if length.is_empty() || !length.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let length: u32 = length.parse().ok()?;
    match network {
        IpAddr::V4(_) => {
            let rest = 32_u32.checked_sub(length)?;
            Some(Ipv4Addr::from_bits(u32::MAX.checked_shl(rest).unwrap_or(0)).into())
        }
        IpAddr::V6(_) => {
            let rest = 128_u32.checked_sub(length)?;
            Some(Ipv6Addr::from_bits(u128::MAX.checked_shl(rest).unwrap_or(0)).into())
        }
    }
}

fn is_within(client: IpAddr, network: IpAddr, mask: IpAddr) -> bool {
    match (client, network, mask) {
        (IpAddr::V4(client), IpAddr::V4(network), IpAddr::V4(mask)) => {
            client & mask == network & mask
        }
        (IpAddr::V6(client), IpAddr::V6(network), IpAddr::V6(mask)) => {
            client & mask == network & mask
        }
        _ => false,
    }
}

/// Our own addresses as they are now. None if the system does not tell.
pub fn interfaces() -> Vec<Interface> {
    let Ok(addresses) = nix::ifaddrs::getifaddrs() else {
        return Vec::new();
    };
    let ip = |socket: &nix::sys::socket::SockaddrStorage| -> Option<IpAddr> {
        let v4 = socket.as_sockaddr_in().map(|it| IpAddr::V4(it.ip()));
        v4.or_else(|| socket.as_sockaddr_in6().map(|it| IpAddr::V6(it.ip())))
    };
    addresses
        .filter_map(|it| Some((ip(&it.address?)?, ip(&it.netmask?)?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<(Address, bool), String> {
        let name = Name {
            text: text.to_owned(),
            quoted: false,
        };
        Address::parse(&name).map_err(|problem| problem.to_string())
    }

    fn matches(address: &Address, client: &str) -> bool {
        let own = || vec![("10.1.2.3".parse().unwrap(), "255.255.0.0".parse().unwrap())];
        address.matches(client.parse().unwrap(), &own)
    }

    #[test]
    fn a_network_takes_in_what_shares_its_first_bits() {
        let table = [
            ("10.0.0.0/8", "10.255.0.1", true),
            ("10.0.0.0/8", "11.0.0.1", false),
            ("10.9.9.9/8", "10.0.0.1", true),
            ("127.0.0.1/32", "127.0.0.1", true),
            ("127.0.0.1/32", "127.0.0.2", false),
            ("0.0.0.0/0", "192.0.2.1", true),
            ("0.0.0.0/0", "::1", false),
            ("10.0.0.0/8", "::ffff:10.0.0.1", true),
            ("::/0", "2001:db8::1", true),
            ("::/0", "10.0.0.1", false),
            ("2001:db8::/33", "2001:db8:7fff::1", true),
            ("2001:db8::/33", "2001:db8:8000::1", false),
            ("::1/128", "::1", true),
            ("all", "192.0.2.1", true),
            ("samehost", "10.1.2.3", true),
            ("samehost", "10.1.2.4", false),
            ("samenet", "10.1.200.4", true),
            ("samenet", "10.2.2.3", false),
        ];
        for (address, client, expected) in table {
            let (parsed, _) = parse(address).unwrap();
            assert_eq!(matches(&parsed, client), expected, "{address} {client}");
        }
    }

    #[test]
    fn a_mask_stands_in_its_own_column() {
        let mask = |text: &str| Name {
            text: text.to_owned(),
            quoted: false,
        };
        let (address, wants_mask) = parse("10.0.0.0").unwrap();
        assert!(wants_mask);
        let net = address.clone().with_mask(&mask("255.0.0.255")).unwrap();
        assert!(matches(&net, "10.3.4.0") && !matches(&net, "10.3.4.1"));
        assert!(address.clone().with_mask(&mask("ffff::")).is_err());
        assert!(address.with_mask(&mask("8")).is_err());
    }

    #[test]
    fn what_is_no_address_is_named() {
        for text in [
            "10.0.0.0/33",
            "::/129",
            "10.0.0.0/",
            "10.0.0.0/+8",
            "10.0.0/8",
            "10.0.0.256",
            "1:2:3",
            "a/8",
            "10.0.0.0/99999999999",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert_eq!(
            parse("db.example").unwrap().0,
            Address::HostName("db.example".into())
        );
    }

    #[test]
    fn this_machine_has_an_address() {
        let own = interfaces();
        assert!(own.iter().any(|(own, _)| own.is_loopback()), "{own:?}");
    }
}
