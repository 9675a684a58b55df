//! What an HTML page says: its tables and what its drawings tell, and whether they agree with the JSON files.

use std::collections::BTreeSet;

use serde_json::Value;

/// A table of a page.
pub struct Table {
    pub caption: String,
    pub headings: Vec<String>,
    pub rows: Vec<Vec<String>>,
}

/// What is looked at of a page.
pub struct Page {
    pub tables: Vec<Table>,
    /// The title of every mark of a drawing.
    pub told: Vec<String>,
}

impl Page {
    pub fn parse(html: &str) -> Self {
        let dom = tl::parse(html, tl::ParserOptions::default()).unwrap();
        let parser = dom.parser();
        let text = |tag: &tl::HTMLTag<'_>| {
            let text = tag.inner_text(parser).trim().to_owned();
            text.replace("&lt;", "<")
                .replace("&gt;", ">")
                .replace("&quot;", "\"")
                .replace("&amp;", "&")
        };
        let all = |tag: &tl::HTMLTag<'_>, selector: &str| -> Vec<String> {
            let found = tag.query_selector(parser, selector).into_iter().flatten();
            found
                .map(|node| text(node.get(parser).unwrap().as_tag().unwrap()))
                .collect()
        };
        let tags = |selector: &'static str| {
            let found = dom.query_selector(selector).into_iter().flatten();
            found.map(|node| node.get(parser).unwrap().as_tag().unwrap())
        };
        let tables = tags("table").map(|table| {
            let rows = table.query_selector(parser, "tr").into_iter().flatten();
            let rows = rows.map(|row| {
                let row = row.get(parser).unwrap().as_tag().unwrap();
                let heads = all(row, "th").into_iter();
                heads.chain(all(row, "td")).collect::<Vec<_>>()
            });
            let mut rows = rows.collect::<Vec<_>>().into_iter();
            Table {
                caption: all(table, "caption").concat(),
                headings: rows.next().unwrap(),
                rows: rows.collect(),
            }
        });
        Self {
            tables: tables.collect(),
            told: tags("title").skip(1).map(text).collect(),
        }
    }

    fn table(&self, caption: &str) -> &Table {
        self.table_of(caption, &[])
    }

    /// The table that has all these rows with their times: suites may have a problem in common, and machines
    /// a suite.
    fn table_of(&self, caption: &str, rows: &[Value]) -> &Table {
        let has = |table: &Table, row: &Value| {
            let name = row["implementation"].as_str().unwrap();
            let ms = row["single_ms"]["median"].as_f64();
            table.rows.iter().any(|cells| cells[0] == name) && shows(table.cell(name, "ms"), ms)
        };
        let mut tables = self.tables.iter();
        let found =
            tables.find(|table| table.caption == caption && rows.iter().all(|row| has(table, row)));
        found.unwrap_or_else(|| panic!("no table `{caption}`"))
    }

    /// Compares all numbers of the files' rows with those of the page's tables. Returns how many there were.
    pub fn agrees_with(&self, files: &[Value]) -> usize {
        files
            .iter()
            .map(|file| match file["suite"].as_str() {
                Some("collectives" | "decode") => self.agrees_on_collectives(file),
                Some(_) => self.agrees_on_plans(file),
                None => self.agrees_on_timelines(file),
            })
            .sum()
    }

    fn agrees_on_plans(&self, file: &Value) -> usize {
        let mut compared = 0;
        for result in file["results"].as_array().unwrap() {
            let shape = &result["shape"];
            let world = result["world"].as_u64().unwrap();
            let operation = result["operation"]
                .as_str()
                .map_or(String::new(), |o| format!("{o}, "));
            let caption = format!(
                "{operation}M×N×K = {}x{}x{}, {}, {world} rank{}",
                shape["m"],
                shape["n"],
                shape["k"],
                result["dtype"].as_str().unwrap(),
                if world == 1 { "" } else { "s" }
            );
            let rows = result["rows"].as_array().unwrap();
            let table = self.table_of(&caption, rows);
            let devices = file["provenance"]["devices"].as_array().unwrap();
            let devices: Vec<_> = devices
                .iter()
                .map(|each| each["name"].as_str().unwrap())
                .collect();
            let scaling = format!(
                "TFLOP/s over ranks: {}, M×N×K = {}x{}x{}, {}, {}",
                file["suite"].as_str().unwrap(),
                shape["m"],
                shape["n"],
                shape["k"],
                result["dtype"].as_str().unwrap(),
                devices.join(" and ")
            );
            let scaled = self.tables.iter().find(|table| table.caption == scaling);
            for row in rows {
                // Where another file is of another number of ranks.
                if let (Some(table), Some(_)) = (scaled, row["tflops"].as_f64()) {
                    let name = row["implementation"].as_str().unwrap();
                    let cell = table.cell(name, &format!("{world} ranks"));
                    compared += usize::from(same(cell, &row["tflops"], 1.0, &scaling));
                }
                for (heading, value) in [
                    ("ms", &row["single_ms"]["median"]),
                    ("TFLOP/s", &row["tflops"]),
                    ("× base", &row["times_baseline"]),
                    ("eff.", &row["efficiency"]),
                    ("back to back", &row["back_to_back_ms"]["median"]),
                    ("graph", &row["graph_ms"]["median"]),
                ] {
                    let cell = table.cell(row["implementation"].as_str().unwrap(), heading);
                    compared += usize::from(same(cell, value, 1.0, &caption));
                }
            }
        }
        compared
    }

    fn agrees_on_collectives(&self, file: &Value) -> usize {
        let mut compared = 0;
        for result in file["results"].as_array().unwrap() {
            let what = format!(
                "{}, {}, {} ranks",
                result["operation"].as_str().unwrap(),
                result["dtype"].as_str().unwrap(),
                result["world"]
            );
            let size = result["size"].as_u64().unwrap();
            let size = match size {
                size if size % (1 << 20) == 0 => format!("{}M", size >> 20),
                size => format!("{}K", size >> 10),
            };
            for row in result["rows"].as_array().unwrap() {
                let name = row["implementation"].as_str().unwrap();
                for (time, field) in [
                    ("one call", "single_ms"),
                    ("one graph launch", "graph_single_ms"),
                    ("calls back to back", "back_to_back_ms"),
                    ("graph launches back to back", "graph_ms"),
                ] {
                    // Peers have single calls only.
                    if row[field].is_null() && row["kind"] == "peer" {
                        continue;
                    }
                    let caption = format!("µs of {time}: {what}");
                    let cell = self.table(&caption).cell(name, &size);
                    compared += usize::from(same(cell, &row[field]["median"], 1e3, &caption));
                }
                let caption = format!("NCCL's time over the row's, one call: {what}");
                let cell = self.table(&caption).cell(name, &size);
                compared += usize::from(same(cell, &row["times_nccl"]["single"], 1.0, &caption));
            }
        }
        compared
    }

    fn agrees_on_timelines(&self, file: &Value) -> usize {
        let tables = self.tables.iter();
        let of_timelines = tables.filter(|table| table.headings.contains(&"operation".into()));
        let shown: BTreeSet<_> = of_timelines
            .flat_map(|table| &table.rows)
            .map(|row| row[2..].to_vec())
            .collect();
        let events = file["traceEvents"].as_array().unwrap().iter();
        let ran: Vec<_> = events.filter(|event| event["ph"] == "X").collect();
        for event in &ran {
            let number = |field: &str| format!("{:.2}", event[field].as_f64().unwrap());
            let name = event["name"].as_str().unwrap().to_owned();
            let row = vec![name, number("ts"), number("dur")];
            assert!(shown.contains(&row), "no table has {row:?}");
        }
        2 * ran.len()
    }

    /// Every number that a drawing tells stands in some table.
    pub fn tells_no_more_than_its_tables(&self) {
        let cells = self
            .tables
            .iter()
            .flat_map(|table| table.rows.iter().flatten());
        let known: BTreeSet<String> = cells.flat_map(|cell| numbers(cell)).collect();
        for told in &self.told {
            let (_, values) = told.rsplit_once(": ").unwrap_or_else(|| panic!("{told}"));
            for number in numbers(values) {
                assert!(known.contains(&number), "`{told}`: {number} is in no table");
            }
        }
    }
}

impl Table {
    fn cell(&self, row: &str, heading: &str) -> &str {
        let column = self.headings.iter().position(|h| h == heading);
        let row = self.rows.iter().find(|cells| cells[0] == row);
        let row = row.unwrap_or_else(|| panic!("no row in `{}`", self.caption));
        // Where no row has anything there is no column.
        column.map_or("", |column| &row[column])
    }
}

/// Whether a cell has a value, in the digits that it shows, or neither is there.
fn shows(cell: &str, value: Option<f64>) -> bool {
    let Some(value) = value else {
        return cell.is_empty() || cell == "–";
    };
    let digits = cell.split_once('.').map_or(0, |(_, digits)| digits.len());
    let half = 0.5 * 10f64.powi(-(digits as i32));
    let shown = cell.parse::<f64>();
    shown.is_ok_and(|shown| (shown - value).abs() <= half * (1.0 + 1e-6))
}

/// Whether there is a number; it must be the one of the file.
fn same(cell: &str, value: &Value, factor: f64, place: &str) -> bool {
    let value = value.as_f64().map(|value| value * factor);
    assert!(shows(cell, value), "`{place}` has `{cell}` for {value:?}");
    value.is_some()
}

fn numbers(text: &str) -> Vec<String> {
    let parts = text.split(|c: char| !c.is_ascii_digit() && c != '.');
    let numbers = parts.filter(|part| part.parse::<f64>().is_ok());
    numbers.map(str::to_owned).collect()
}
