//! An HTTP download from nginx with curl, the content compared by SHA-256.
#![forbid(unsafe_code)]

use crate::lab::process::run;
use crate::lab::{Background, Host, LabError};
use serde_json::Value;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// A running nginx that serves one file.
#[derive(Debug)]
pub struct WebServer {
    nginx: Background,
    sha256: String,
    bytes: u64,
}

/// A finished download.
#[derive(Debug, Clone, PartialEq)]
pub struct Download {
    /// SHA-256 of what arrived, hexadecimal.
    pub sha256: String,
    /// Bytes that arrived.
    pub bytes: u64,
    /// HTTP status.
    pub status: u64,
    /// Seconds from start to end.
    pub seconds: f64,
}

impl WebServer {
    /// Writes a file of `bytes` pseudo-random bytes and serves it in `host` on port 80, both families.
    ///
    /// # Errors
    /// [`LabError::MissingTool`], [`LabError::Io`], nginx's log when it does not start.
    pub fn start(host: &Host, bytes: u64) -> Result<WebServer, LabError> {
        let root = host.scratch().join(format!("www-{}", host.name()));
        let failed = |error| LabError::io(format!("writing {}", root.display()), error);
        fs::create_dir_all(&root).map_err(failed)?;
        let file = root.join("file");
        write_random(&file, bytes).map_err(failed)?;
        let sha256 = sha256(&file)?;
        let path = root.display();
        let configuration = format!(
            "daemon off; worker_processes 1; user root; pid {path}/nginx.pid; error_log stderr;\n\
             events {{ worker_connections 256; }}\n\
             http {{ access_log off; sendfile on; client_body_temp_path {path}/1; proxy_temp_path {path}/2;\n\
             fastcgi_temp_path {path}/3; uwsgi_temp_path {path}/4; scgi_temp_path {path}/5;\n\
             server {{ listen 80; listen [::]:80; root {path}; }} }}\n"
        );
        let configuration_file = root.join("nginx.conf");
        fs::write(&configuration_file, configuration).map_err(failed)?;
        let mut nginx = host.spawn(&["nginx", "-e", "stderr", "-c", &configuration_file.to_string_lossy()])?;
        host.wait_listening(80, &mut nginx, Duration::from_secs(10))?;
        Ok(WebServer { nginx, sha256, bytes })
    }

    /// SHA-256 of the file served, hexadecimal.
    pub fn sha256(&self) -> &str {
        &self.sha256
    }

    /// Length of the file served.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Downloads the file in `client` from the server's address, for at most `limit`.
    ///
    /// # Errors
    /// [`LabError::MissingTool`], [`LabError::Timeout`], curl's message when the transfer breaks.
    pub fn download(&mut self, client: &Host, from: IpAddr, limit: Duration) -> Result<Download, LabError> {
        self.nginx.check()?;
        let file = client.scratch().join(format!("download-{}", client.name()));
        let address = if from.is_ipv6() { format!("[{from}]") } else { from.to_string() };
        let url = format!("http://{address}/file");
        let words = ["curl", "-sS", "--noproxy", "*", "-o", &file.to_string_lossy(), "-w", "%{json}", &url];
        let done = client.run(&words, limit)?.success()?;
        let facts: Value = serde_json::from_str(&done.stdout).map_err(|e| LabError::output("curl", e, &done.stdout))?;
        let download = Download {
            sha256: sha256(&file)?,
            bytes: fs::metadata(&file).map_err(|e| LabError::io("reading the download", e))?.len(),
            status: facts["http_code"].as_u64().unwrap_or_default(),
            seconds: facts["time_total"].as_f64().unwrap_or_default(),
        };
        fs::remove_file(&file).map_err(|e| LabError::io("removing the download", e))?;
        Ok(download)
    }
}

/// SHA-256 of a file with sha256sum(1).
fn sha256(file: &Path) -> Result<String, LabError> {
    let program: PathBuf = crate::lab::tools::find("sha256sum")?;
    let done = run(Command::new(program).arg(file), b"", Duration::from_secs(60))?.success()?;
    let digest = done.stdout.split_ascii_whitespace().next().unwrap_or_default();
    Ok(digest.to_string())
}

/// xorshift64 (Marsaglia 2003): no two blocks alike, so that a swapped or repeated segment changes the digest.
fn write_random(file: &Path, bytes: u64) -> std::io::Result<()> {
    let mut out = BufWriter::with_capacity(1 << 20, File::create(file)?);
    let mut state: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut left = bytes;
    while left > 0 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let take = left.min(8) as usize;
        out.write_all(&state.to_le_bytes()[..take])?;
        left -= take as u64;
    }
    out.flush()
}
