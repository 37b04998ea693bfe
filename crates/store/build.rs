//! A new migration is a new file, which the compiler does not notice by itself: the migrations are compiled in.

fn main() {
    println!("cargo::rerun-if-changed=../../migrations");
}
