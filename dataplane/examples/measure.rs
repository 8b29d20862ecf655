//! t
fn main() {
    let m = ferrule_dataplane::worker::measure::run;
    m(512, 2112, false, 1);
    m(2048, 2112, false, 1);
    if std::env::args().len() > 1 {
        m(2048, 2112, false, 10000);
        m(32768, 2112, true, 0);
        m(524288, 2048, true, 0);
    }
}
