//! Tables of degree distributions: solutions of the linear program of Yang and Yeung for eta = 0.98
//! and the rank distribution of the named network. The weights add up to about 10,000.

/// A degree distribution that is asymptotically optimal for a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Table {
    /// M = 8, one hop with 10 % loss; mean degree 30.
    M8OneHop,
    /// M = 16, one hop with 10 % loss; mean degree 58.
    M16OneHop,
    /// M = 16, four hops with 20 % loss each, random recoding; mean degree 45.
    M16FourHops,
    /// M = 32, four hops with 20 % loss each, random recoding; mean degree 94.
    M32FourHops,
}

impl Table {
    /// Pairs of degree and weight, in ascending order of degree.
    #[must_use]
    pub const fn weights(self) -> &'static [(u32, u32)] {
        match self {
            Self::M8OneHop => M8_ONE_HOP,
            Self::M16OneHop => M16_ONE_HOP,
            Self::M16FourHops => M16_FOUR_HOPS,
            Self::M32FourHops => M32_FOUR_HOPS,
        }
    }
}

const M8_ONE_HOP: &[(u32, u32)] = &[
    (9, 2361),
    (10, 422),
    (11, 713),
    (12, 617),
    (13, 337),
    (14, 490),
    (15, 539),
    (18, 1009),
    (23, 472),
    (24, 494),
    (32, 633),
    (34, 173),
    (46, 337),
    (48, 293),
    (69, 37),
    (72, 437),
    (115, 73),
    (120, 279),
    (233, 286),
];

const M16_ONE_HOP: &[(u32, u32)] = &[
    (16, 192),
    (17, 2050),
    (21, 1535),
    (26, 1117),
    (27, 230),
    (33, 889),
    (34, 220),
    (42, 390),
    (43, 499),
    (53, 199),
    (56, 528),
    (71, 177),
    (73, 386),
    (93, 91),
    (97, 365),
    (127, 96),
    (133, 275),
    (182, 93),
    (189, 204),
    (280, 192),
    (291, 47),
    (485, 223),
];

const M16_FOUR_HOPS: &[(u32, u32)] = &[
    (13, 486),
    (14, 2549),
    (18, 47),
    (19, 1896),
    (26, 1421),
    (27, 34),
    (36, 1049),
    (49, 483),
    (51, 255),
    (65, 85),
    (68, 421),
    (89, 132),
    (93, 275),
    (127, 95),
    (133, 249),
    (204, 275),
    (368, 248),
];

const M32_FOUR_HOPS: &[(u32, u32)] = &[
    (26, 870),
    (27, 1173),
    (32, 660),
    (33, 823),
    (39, 263),
    (40, 983),
    (49, 1042),
    (60, 217),
    (61, 647),
    (75, 255),
    (76, 442),
    (94, 541),
    (112, 85),
    (116, 305),
    (136, 251),
    (142, 47),
    (166, 310),
    (210, 268),
    (218, 20),
    (266, 15),
    (276, 229),
    (364, 87),
    (378, 118),
    (518, 95),
    (539, 79),
    (830, 176),
];
