//! What the rules look at: the workspace's packages with their manifests and sources.

use super::source::Source;
use std::{
    fs,
    path::{Path, PathBuf},
};

/// The workspace as it lies on disk.
pub struct Repository {
    pub root: PathBuf,
    pub packages: Vec<Package>,
}

/// One member of the workspace.
pub struct Package {
    /// Its name in its manifest.
    pub name: String,
    pub manifest: toml::Table,
    pub sources: Vec<Source>,
}

impl Repository {
    pub fn read(root: &Path) -> Result<Self, String> {
        let workspace = table(&root.join("Cargo.toml"))?;
        let members = workspace["workspace"]["members"].as_array().ok_or("the workspace has no members")?;
        let packages = members
            .iter()
            .filter_map(toml::Value::as_str)
            .map(|member| Package::read(root, member))
            .collect::<Result<_, _>>()?;
        Ok(Self { root: root.to_owned(), packages })
    }

    /// All Rust files.
    pub fn sources(&self) -> impl Iterator<Item = &Source> {
        self.packages.iter().flat_map(|package| &package.sources)
    }

    /// The Rust files of some packages.
    pub fn sources_of(&self, names: &[&str]) -> impl Iterator<Item = &Source> {
        self.packages.iter().filter(|p| names.contains(&p.name.as_str())).flat_map(|package| &package.sources)
    }
}

impl Package {
    fn read(root: &Path, member: &str) -> Result<Self, String> {
        let manifest = table(&root.join(member).join("Cargo.toml"))?;
        let name = manifest["package"]["name"].as_str().ok_or_else(|| format!("{member} has no name"))?.to_owned();
        let mut files = Vec::new();
        rust_files(&root.join(member), &mut files).map_err(|e| format!("{member}: {e}"))?;
        files.sort();
        let sources = files.iter().map(|file| Source::read(root, file)).collect::<Result<_, _>>()?;
        Ok(Self { name, manifest, sources })
    }

    /// What it is built with; what only its tests use is not asked for.
    pub fn dependencies(&self) -> impl Iterator<Item = &str> {
        self.manifest
            .get("dependencies")
            .and_then(toml::Value::as_table)
            .into_iter()
            .flat_map(|t| t.keys())
            .map(String::as_str)
    }
}

fn table(path: &Path) -> Result<toml::Table, String> {
    let text = fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    text.parse().map_err(|e| format!("{}: {e}", path.display()))
}

fn rust_files(folder: &Path, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            let name = path.file_name().unwrap_or_default();
            if name != "target" && name != "node_modules" {
                rust_files(&path, files)?;
            }
        } else if path.extension().is_some_and(|e| e == "rs") {
            files.push(path);
        }
    }
    Ok(())
}
