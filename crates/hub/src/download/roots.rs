//! The certificate authorities that connections are checked with.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use rustls_native_certs::load_certs_from_paths;
use ureq::tls::{Certificate, RootCerts};
use webpki_root_certs::TLS_SERVER_ROOT_CERTS;

use crate::Error;

/// Variables that name files or folders of certificates: OpenSSL's, else those of Python's requests and of curl, as
/// `huggingface_hub` takes them. The first group of which one is set counts.
const GROUPS: [&[&str]; 3] =
    [&["SSL_CERT_FILE", FOLDERS], &["REQUESTS_CA_BUNDLE"], &["CURL_CA_BUNDLE"]];

/// The variable whose value is a list of folders.
const FOLDERS: &str = "SSL_CERT_DIR";

/// Advice for a certificate of an authority that is not among them.
pub(super) const UNKNOWN: &str = "the certificate is from an authority that this machine does not trust; for a \
                                  company's proxy or a mirror, name the file with its authority's certificate (PEM) \
                                  in SSL_CERT_FILE";

/// The authorities that a variable names; else the system's and Mozilla's: a system may have few of its own, as in a
/// container, or install those of public servers when a program of its maker needs them, as Windows does.
///
/// # Errors
/// What a variable names cannot be read or has no certificate; of folders only where no file is named beside them.
pub(super) fn roots(variable: &dyn Fn(&str) -> Option<OsString>) -> Result<RootCerts, Error> {
    for group in GROUPS {
        let set = |name: &&'static str| {
            let value = variable(name).filter(|value| !value.is_empty())?;
            Some((*name, value))
        };
        let mut found = Vec::new();
        for (name, value) in group.iter().filter_map(set) {
            match named(name, &value) {
                // Beside a file, folders may be empty or missing, as with OpenSSL.
                Err(_) if name == FOLDERS && !found.is_empty() => {}
                read => found.extend(read?),
            }
        }
        if !found.is_empty() {
            return Ok(RootCerts::from(found));
        }
    }
    let mut found = system();
    found.extend(TLS_SERVER_ROOT_CERTS.iter().map(|of| Certificate::from_der(of).to_owned()));
    found.sort_unstable_by(|a, b| a.der().cmp(b.der()));
    found.dedup_by(|a, b| a.der() == b.der());
    Ok(RootCerts::from(found))
}

/// The authorities of the system; none where they cannot be read.
#[cfg(all(unix, not(target_os = "macos")))]
fn system() -> Vec<Certificate<'static>> {
    // `load_native_certs` looks nowhere else where a variable is set, although it is empty.
    let known = openssl_probe::probe();
    let paths: Vec<PathBuf> = known.cert_file.into_iter().chain(known.cert_dir).collect();
    read(&paths).0
}

/// The authorities of the system; none where they cannot be read.
#[cfg(not(all(unix, not(target_os = "macos"))))]
fn system() -> Vec<Certificate<'static>> {
    // On Windows it panics at a certificate whose purposes cannot be read.
    let read = std::panic::catch_unwind(rustls_native_certs::load_native_certs);
    let certs = read.map(|read| read.certs).unwrap_or_default();
    certs.iter().map(|of| Certificate::from_der(of).to_owned()).collect()
}

/// The certificates in the file or the folders that the variable `name` names.
///
/// # Errors
/// There is none; the reason is the first problem of reading.
fn named(name: &str, value: &OsStr) -> Result<Vec<Certificate<'static>>, Error> {
    let paths: Vec<PathBuf> = match name {
        FOLDERS => std::env::split_paths(value).filter(|path| path != "").collect(),
        _ => vec![PathBuf::from(value)],
    };
    let (found, problems) = read(&paths);
    if found.is_empty() {
        let none = format!("no certificate (PEM) in {}", value.display());
        let reason = problems.into_iter().next().unwrap_or(none);
        return Err(Error::Setting { variable: name.to_owned(), reason });
    }
    Ok(found)
}

/// The certificates in files and folders, and what cannot be read of them.
fn read(paths: &[PathBuf]) -> (Vec<Certificate<'static>>, Vec<String>) {
    let (mut found, mut problems) = (Vec::new(), Vec::new());
    for path in paths {
        let read = match path.is_dir() {
            true => load_certs_from_paths(None, Some(path)),
            false => load_certs_from_paths(Some(path), None),
        };
        found.extend(read.certs.iter().map(|of| Certificate::from_der(of).to_owned()));
        problems.extend(read.errors.iter().map(ToString::to_string));
    }
    (found, problems)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sections of PEM files are not looked into here.
    fn pem(bytes: &str) -> String {
        format!("-----BEGIN CERTIFICATE-----\n{bytes}\n-----END CERTIFICATE-----\n")
    }

    /// Variables with their values.
    type Set<'s> = &'s [(&'s str, &'s OsStr)];

    /// The bytes of the certificates.
    fn found(set: Set<'_>) -> Result<Vec<Vec<u8>>, Error> {
        let variable = |name: &str| {
            set.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        };
        Ok(match roots(&variable)? {
            RootCerts::Specific(of) => of.iter().map(|of| of.der().to_owned()).collect(),
            other => panic!("{other:?}"),
        })
    }

    #[test]
    fn the_first_variable_that_is_set_names_the_authorities() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: String| {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, text).unwrap();
            path.into_os_string()
        };
        let one = write("one.pem", format!("a comment\n{}", pem("AAAA")));
        let two = write("two.pem", pem("AAAB") + &pem("AAAC"));
        write("more/three.pem", pem("AAAD"));
        let more = folder.path().join("more").into_os_string();
        let none = OsString::new();
        let missing = folder.path().join("missing").into_os_string();
        let cases: [(Set<'_>, &[u8]); 6] = [
            (&[("SSL_CERT_FILE", &one), ("SSL_CERT_DIR", &missing)], &[0]),
            (&[("SSL_CERT_FILE", &one), ("REQUESTS_CA_BUNDLE", &two)], &[0]),
            (&[("SSL_CERT_FILE", &one), ("SSL_CERT_DIR", &more)], &[0, 3]),
            (&[("SSL_CERT_FILE", &none), ("REQUESTS_CA_BUNDLE", &two)], &[1, 2]),
            (&[("REQUESTS_CA_BUNDLE", &more), ("CURL_CA_BUNDLE", &one)], &[3]),
            (&[("CURL_CA_BUNDLE", &one)], &[0]),
        ];
        for (set, expected) in cases {
            let found: Vec<u8> = found(set).unwrap().iter().map(|bytes| bytes[2]).collect();
            assert_eq!(found, expected, "{set:?}");
        }
    }

    #[test]
    fn without_a_variable_the_authorities_of_the_system_and_of_mozilla_are_trusted() {
        let none = OsStr::new("");
        for set in [&[][..], &[("SSL_CERT_FILE", none), ("SSL_CERT_DIR", none)]] {
            let found = found(set).unwrap();
            let system = system();
            let expected = system.iter().map(Certificate::der);
            let mut expected = expected.chain(TLS_SERVER_ROOT_CERTS.iter().map(|of| &of[..]));
            assert!(expected.all(|der| found.iter().any(|bytes| bytes == der)));
            assert!(found.len() > 100 && found.is_sorted_by(|a, b| a < b), "{}", found.len());
        }
    }

    #[test]
    fn what_a_variable_names_must_have_a_certificate() {
        let folder = tempfile::tempdir().unwrap();
        let empty = folder.path().join("empty.pem");
        std::fs::write(&empty, "no certificate").unwrap();
        let missing = folder.path().join("missing.pem");
        for (name, path) in [
            ("SSL_CERT_FILE", &missing),
            ("SSL_CERT_DIR", &missing),
            ("REQUESTS_CA_BUNDLE", &empty),
            ("CURL_CA_BUNDLE", &missing),
        ] {
            let error = found(&[(name, path.as_os_str())]).unwrap_err().to_string();
            let file = path.file_name().unwrap().to_str().unwrap();
            assert!(error.starts_with(&format!("{name}: ")) && error.contains(file), "{error}");
        }
    }
}
