//! The version of macOS, whose updates replace the drivers of its GPUs.

/// Where macOS has its version, as a property list.
const FILE: &str = "/System/Library/CoreServices/SystemVersion.plist";

/// Such as `macOS 15.1 24B83`; `None` on another system.
pub fn version() -> Option<String> {
    of_list(&std::fs::read_to_string(FILE).ok()?)
}

fn of_list(list: &str) -> Option<String> {
    let value = |key: &str| {
        let (_, rest) = list.split_once(&format!("<key>{key}</key>"))?;
        let (_, rest) = rest.split_once("<string>")?;
        Some(rest.split_once("</string>")?.0.to_owned())
    };
    Some(format!("macOS {} {}", value("ProductVersion")?, value("ProductBuildVersion")?))
}

#[cfg(test)]
mod tests {
    use super::of_list;

    #[test]
    fn the_version_is_read_from_the_list() {
        let list = "<plist version=\"1.0\">\n<dict>\n\t<key>ProductBuildVersion</key>\n\t<string>24B83</string>\n\
                    \t<key>ProductVersion</key>\n\t<string>15.1</string>\n</dict>\n</plist>";
        assert_eq!(of_list(list).as_deref(), Some("macOS 15.1 24B83"));
        assert_eq!(of_list("<plist/>"), None);
    }
}
