//! Renders plots as PNG.

use std::sync::{Arc, OnceLock};

use anyhow::{Context, Result};
use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg::{Options, Tree, fontdb};

/// Pixels per SVG unit.
const SCALE: f32 = 2.0;

/// Fonts are embedded, so that plots are identical on every machine.
fn fonts() -> Arc<fontdb::Database> {
    static FONTS: OnceLock<Arc<fontdb::Database>> = OnceLock::new();
    Arc::clone(FONTS.get_or_init(|| {
        let mut fonts = fontdb::Database::new();
        fonts.load_font_data(dejavu::sans::regular().to_vec());
        fonts.load_font_data(dejavu::sans::bold().to_vec());
        fonts.set_sans_serif_family("DejaVu Sans");
        Arc::new(fonts)
    }))
}

/// Renders an SVG as PNG.
///
/// # Errors
/// If the SVG is invalid.
pub(crate) fn png(svg: &str) -> Result<Vec<u8>> {
    let options =
        Options { fontdb: fonts(), font_family: "DejaVu Sans".to_owned(), ..Options::default() };
    let tree = Tree::from_str(svg, &options).context("invalid SVG of a plot")?;
    let size = tree.size().to_int_size().scale_by(SCALE).context("a plot has no size")?;
    let mut pixels = Pixmap::new(size.width(), size.height()).context("a plot has no size")?;
    resvg::render(&tree, Transform::from_scale(SCALE, SCALE), &mut pixels.as_mut());
    pixels.encode_png().context("cannot encode a plot as PNG")
}

#[cfg(test)]
mod tests {
    #[test]
    fn text_is_rendered() {
        let svg = |text: &str| {
            format!(
                "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 100 30\"><text x=\"5\" y=\"20\" font-family=\"DejaVu Sans\">{text}</text></svg>"
            )
        };
        let (with, without) = (super::png(&svg("Mbit/s")).unwrap(), super::png(&svg("")).unwrap());
        assert!(with.starts_with(b"\x89PNG") && with.len() > without.len() + 100);
        assert!(super::png("<svg").is_err());
    }
}
